import pytest

from megabert.observability.flops import gpu_by_name, gpu_of_device


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
    ],
)
def test_devices_are_known_by_their_own_names(device, name):
    assert gpu_of_device(device) is gpu_by_name(name)


@pytest.mark.parametrize("device", ["NVIDIA RTX A1000 Laptop GPU", "NVIDIA GH200 480GB", "cpu"])
def test_device_with_a_similar_name_is_another_one(device):
    assert gpu_of_device(device) is None
