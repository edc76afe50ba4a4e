"""Rules about links: PCIe, NVLink, peer access, network ports."""
