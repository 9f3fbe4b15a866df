//! How NVML writes UUIDs and PCI addresses.

/// `GPU-` and the UUID in its usual groups.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let mut out = "GPU".to_owned();
    for (n, byte) in bytes.iter().enumerate() {
        if matches!(n, 0 | 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out += &format!("{byte:02x}");
    }
    out
}

/// A PCI address: domain, bus, device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bus {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl Bus {
    /// Reads `[domain:]bus:device[.function]`, hexadecimal.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            u32::from_str_radix(part, 16).ok().filter(|_| digits)
        };
        let (rest, device) = text.rsplit_once(':')?;
        let (device, function) = device.split_once('.').unwrap_or((device, "0"));
        number(function)?;
        let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
        Some(Self {
            domain: number(domain)?,
            bus: number(bus)?,
            device: number(device)?,
        })
    }

    /// As NVML writes it, with a domain of `digits` digits.
    pub(crate) fn text<const N: usize>(self, digits: usize) -> [u8; N] {
        let Self {
            domain,
            bus,
            device,
        } = self;
        let text = format!("{domain:0digits$X}:{bus:02X}:{device:02X}.0");
        let mut out = [0; N];
        // The last one ends it.
        let room = out.iter_mut().take(N - 1);
        room.zip(text.bytes()).for_each(|(to, from)| *to = from);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_uuid_is_in_groups() {
        let bytes = std::array::from_fn(|n| n as u8 * 0x11);
        assert_eq!(uuid(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn an_address_is_read_in_each_form() {
        let bus = Bus {
            domain: 0,
            bus: 0x1b,
            device: 2,
        };
        for text in ["0000:1b:02.0", "00000000:1B:02.0", "1b:2", "0:1b:02"] {
            assert_eq!(Bus::parse(text), Some(bus), "{text}");
        }
        for text in [
            "",
            ":",
            "1b",
            "0000:1b:02.",
            "+1:02",
            "0:0:0:0",
            "0:1b:02.x",
        ] {
            assert_eq!(Bus::parse(text), None, "{text}");
        }
        assert_eq!(&bus.text::<32>(8)[..17], b"00000000:1B:02.0\0");
        assert_eq!(&bus.text::<16>(4), b"0000:1B:02.0\0\0\0\0");
    }

    proptest! {
        #[test]
        fn no_address_does_harm(text: String, domain: u32, bus: u32, device: u32) {
            let _ = Bus::parse(&text);
            let bus = Bus { domain, bus, device };
            prop_assert_eq!(bus.text::<16>(4)[15], 0);
            let whole = bus.text::<64>(8);
            let len = whole.iter().position(|byte| *byte == 0).unwrap();
            let text = std::str::from_utf8(&whole[..len]).unwrap();
            prop_assert_eq!(Bus::parse(text), Some(bus));
        }
    }
}
