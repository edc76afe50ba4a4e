/* Copies as a fluid: flows over resources, which they share max-min fair.
 *
 * Progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates grow equally until a resource is
 * full or a flow reaches its own limit. The affected flows stay at their rate; the others continue to grow.
 */
#include "double.h"

#include <math.h>

static struct flow *flows;
static bool fresh; /* the rates match the current flows */

void flow_start(struct flow *flow)
{
    flow->next = flows;
    flows = flow;
    fresh = false;
}

void flow_stop(struct flow *flow)
{
    for (struct flow **at = &flows; *at; at = &(*at)->next)
        if (*at == flow) {
            *at = flow->next;
            break;
        }
    fresh = false;
}

static double growth(const double *left, const double *wanted, double level)
{
    double room = INFINITY;
    for (int index = 0; index < box.resources; index++)
        if (wanted[index] > 0 && left[index] / wanted[index] < room)
            room = left[index] / wanted[index];
    for (struct flow *flow = flows; flow; flow = flow->next)
        if (flow->rate < 0 && flow->limit - level < room)
            room = flow->limit - level;
    return room < 0 ? 0 : room;
}

static bool is_full(const struct flow *flow, const double *left)
{
    for (int hop = 0; hop < flow->path->hops; hop++)
        if (left[flow->path->resource[hop]] <= 1e-9 * box.capacity[flow->path->resource[hop]])
            return true;
    return false;
}

static void share(void)
{
    static double left[MAX_RESOURCES], wanted[MAX_RESOURCES];
    int growing = 0;
    for (int index = 0; index < box.resources; index++) {
        left[index] = box.capacity[index];
        wanted[index] = 0;
    }
    for (struct flow *flow = flows; flow; flow = flow->next, growing++) {
        flow->rate = -1;
        for (int hop = 0; hop < flow->path->hops; hop++)
            wanted[flow->path->resource[hop]] += flow->path->weight[hop];
    }
    for (double level = 0; growing;) {
        double more = growth(left, wanted, level);
        level += more;
        for (int index = 0; index < box.resources; index++)
            left[index] -= more * wanted[index];
        for (struct flow *flow = flows; flow; flow = flow->next) {
            if (flow->rate >= 0 || !(is_full(flow, left) || flow->limit <= level * (1 + 1e-12)))
                continue;
            flow->rate = level;
            growing--;
            for (int hop = 0; hop < flow->path->hops; hop++)
                wanted[flow->path->resource[hop]] -= flow->path->weight[hop];
        }
        for (int index = 0; index < box.resources; index++)
            if (wanted[index] < 1e-9)
                wanted[index] = 0;
    }
    fresh = true;
}

double flows_end(void)
{
    if (!fresh)
        share();
    double first = INFINITY;
    for (struct flow *flow = flows; flow; flow = flow->next) {
        double end = now + flow->left / flow->rate;
        if (end < first)
            first = end;
    }
    return first;
}

void flows_pass(double seconds)
{
    if (!fresh)
        share();
    for (struct flow *flow = flows; flow; flow = flow->next) {
        flow->left -= flow->rate * seconds;
        /* A remainder that takes less time than the clock's resolution is a rounding error. */
        if (flow->left <= flow->rate * (1e-12 + 1e-15 * now))
            flow->left = 0;
    }
}
