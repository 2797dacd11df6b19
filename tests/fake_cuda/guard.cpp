// A CUDA device for a torch without CUDA: a guard and hooks that do nothing. With FakeTensorMode, which needs no
// memory, copies and autograd (its device thread included) then go through the code of a GPU.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device device(c10::DeviceType::CUDA, 0);
const c10::Stream stream(c10::Stream::DEFAULT, device);

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream; }
  c10::Stream getNewStream(c10::Device, int) const override { return stream; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

Guard guard;
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);

}  // namespace

namespace at {

struct Hooks : public CUDAHooksInterface {
  explicit Hooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)

}  // namespace at
