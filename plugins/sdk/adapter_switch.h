// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_ADAPTER_SWITCH_H_
#define CAPSTAN_PLUGINS_SDK_ADAPTER_SWITCH_H_

namespace capstan {

// A Model also derives from this if it can compute without the adapters that
// AddLora gave it, as the model that they were added to; found by dynamic_cast.
// (Preference optimisation compares the two.)
class AdapterSwitch {
 public:
  virtual ~AdapterSwitch();

  // Whether there is an adapter to switch off.
  virtual bool has_adapter() const = 0;

  // Whether forwards begun from now on use the adapter; at first they do. What
  // a forward has passed to UnitRunner::Run stays as it was. Not thread-safe.
  virtual void SetAdapterEnabled(bool enabled) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_ADAPTER_SWITCH_H_
