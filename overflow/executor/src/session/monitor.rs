//! How a device does: NVML's word where this host has it, else the driver's.

use super::commands::{Done, Session};
use super::text;
use crate::driver::Device;
use crate::kinds::Fault;
use crate::nvml::Nvml;
use ghost_wire::hello::{self, Readings};
use ghost_wire::message::Monitor;
use ghost_wire::result::{Code, INVALID_DEVICE};

impl Session {
    pub(super) fn monitor(&mut self, message: Monitor) -> Result<Done, Fault> {
        let driver = &self.shared.driver;
        let number = i32::try_from(message.device).map_err(|_| INVALID_DEVICE)?;
        if number >= driver.count {
            return Err(INVALID_DEVICE.into());
        }
        let readings = match driver.device {
            Device::Cpu => None,
            Device::Nvidia => {
                let bus = text(|to, len| {
                    // SAFETY: room for as many bytes.
                    unsafe { driver.cuDeviceGetPCIBusId(to, len, number) }
                });
                let nvml = self.nvml.get_or_init(Nvml::open);
                nvml.as_ref().and_then(|nvml| nvml.readings(&bus))
            }
        };
        let readings = readings.unwrap_or_else(|| Readings {
            memory: self.memory(number).ok(),
            ..Readings::default()
        });
        Ok(Done::Answer(hello::to_bytes(&readings)))
    }

    /// Total, free and used, by a use of the primary context that is given up again.
    fn memory(&self, device: i32) -> Result<[u64; 3], Code> {
        let driver = &self.shared.driver;
        let mut context = 0;
        driver.cuDevicePrimaryCtxRetain(&mut context, device)?;
        let (mut free, mut total) = (0, 0);
        let told = driver
            .cuCtxSetCurrent(context)
            .and_then(|()| driver.cuMemGetInfo_v2(&mut free, &mut total));
        driver.cuCtxSetCurrent(self.context)?;
        driver.cuDevicePrimaryCtxRelease_v2(device)?;
        told?;
        let [total, free] = [total as u64, free as u64];
        Ok([total, free, total.saturating_sub(free)])
    }
}
