//! Base units: bytes and microseconds, parsed from what people type and printed as numbers.

use crate::name::sanitize;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Microseconds, either a span or a point on the monotonic clock of the host (`sample.at`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Micros(pub u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Micros = Micros(0);

    /// Whole milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Micros(ms.saturating_mul(1000))
    }

    /// The span from `earlier` to here; zero if `earlier` is later.
    pub const fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// As a `Duration`.
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }

    /// Seconds, for people and metrics.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl std::ops::Add for Micros {
    type Output = Micros;
    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bytes of GPU memory. Typed as a plain number or with a suffix `K M G T` (powers of 1024,
/// an `iB` or `B` after it is allowed); printed as a plain number.
///
/// ```
/// use ghost_model::Bytes;
/// assert_eq!("24G".parse::<Bytes>().unwrap(), Bytes(24 << 30));
/// assert!("24 parsecs".parse::<Bytes>().is_err());
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Bytes(pub u64);

/// Why a text is no size or time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a number of bytes.
    #[error("{0:?} is not a size: write bytes, or a number with K, M, G or T such as 24G")]
    Size(String),
    /// Larger than 64 bits hold.
    #[error("{0:?} is too large for a size")]
    TooLarge(String),
    /// Not a whole number of microseconds.
    #[error("{0:?} is not a time in microseconds: write a whole number such as 50000")]
    Time(String),
}

impl std::str::FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bad = || UnitError::Size(sanitize(text));
        let digits = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let suffix = suffix
            .strip_suffix("iB")
            .or_else(|| suffix.strip_suffix('B'))
            .unwrap_or(suffix);
        let shift = match suffix {
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            "T" | "t" => 40,
            _ => return Err(bad()),
        };
        let unit = 1u64 << shift;
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_mul(unit)
                .map(Bytes)
                .ok_or_else(|| UnitError::TooLarge(sanitize(text)));
        }
        // A fraction is for people ("1.5G"); bytes have none.
        let (whole, part) = number.split_once('.').ok_or_else(bad)?;
        if shift == 0
            || part.is_empty()
            || part.len() > 9
            || !part.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(bad());
        }
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        let part: u128 = part.parse::<u128>().map_err(|_| bad())? * u128::from(unit)
            / 10u128.pow(part.len() as u32);
        let whole = whole
            .checked_mul(unit)
            .ok_or_else(|| UnitError::TooLarge(sanitize(text)))?;
        whole
            .checked_add(part as u64)
            .map(Bytes)
            .ok_or_else(|| UnitError::TooLarge(sanitize(text)))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Bytes {
    /// For people: `18.2G`, with at most one decimal.
    pub fn human(self) -> String {
        let steps = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
        for (shift, suffix) in steps {
            if self.0 >= 1 << shift {
                return format!("{:.1}{suffix}", self.0 as f64 / (1u64 << shift) as f64);
            }
        }
        self.0.to_string()
    }
}

impl std::str::FromStr for Micros {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        // `u64::from_str` takes a leading plus sign, which nobody means.
        if text.starts_with('+') {
            return Err(UnitError::Time(sanitize(text)));
        }
        text.parse()
            .map(Micros)
            .map_err(|_| UnitError::Time(sanitize(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        assert_eq!("0".parse(), Ok(Bytes(0)));
        assert_eq!("1.5G".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("512MiB".parse(), Ok(Bytes(512 << 20)));
        for bad in ["", "G", "-1", "1.5", "1e3", "1.G", "12X", " 1", "1 G", "+5"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad:?}");
        }
        assert!(matches!(
            "18446744073709551615T".parse::<Bytes>(),
            Err(UnitError::TooLarge(_))
        ));
        assert_eq!(Bytes(18 << 30).human(), "18.0G");
    }

    proptest! {
        #[test]
        fn bytes_round_trip(n: u64) {
            prop_assert_eq!(Bytes(n).to_string().parse(), Ok(Bytes(n)));
        }

        #[test]
        fn no_text_panics(s in ".*") {
            let _ = s.parse::<Bytes>();
            let _ = s.parse::<Micros>();
        }
    }
}
