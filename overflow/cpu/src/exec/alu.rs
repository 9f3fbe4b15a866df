//! Arithmetic on values that are kept as the low bits of 64.

use crate::ptx::code::{Atom, Bin, Bool, Cmp, CmpOp, Kind, Round, Tri, Ty, Un};

fn f32_of(a: u64) -> f32 {
    f32::from_bits(a as u32)
}

fn of_f32(f: f32) -> u64 {
    u64::from(f.to_bits())
}

/// `a` as a signed number of `ty`'s width.
fn signed(ty: Ty, a: u64) -> i64 {
    match ty.bytes {
        1 => i64::from(a as i8),
        2 => i64::from(a as i16),
        4 => i64::from(a as i32),
        _ => a as i64,
    }
}

/// Sign-extended where `ty` is signed, else zero-extended.
pub(super) fn extend(ty: Ty, a: u64) -> u64 {
    if ty.is_signed() {
        signed(ty, a) as u64
    } else {
        a & ty.mask()
    }
}

#[expect(clippy::manual_clamp, reason = "what is not a number becomes 0")]
fn clamp01(ty: Ty, sat: bool, v: u64) -> u64 {
    if !sat {
        return v;
    }
    if ty.bytes == 4 {
        of_f32(f32_of(v).max(0.0).min(1.0))
    } else {
        f64::from_bits(v).max(0.0).min(1.0).to_bits()
    }
}

pub(super) fn un(op: Un, ty: Ty, a: u64) -> u64 {
    if ty.is_float() && !matches!(op, Un::Mov) {
        return if ty.bytes == 4 {
            of_f32(un_f64(op, f64::from(f32_of(a))) as f32)
        } else {
            un_f64(op, f64::from_bits(a)).to_bits()
        };
    }
    let a = a & ty.mask();
    let v = match op {
        Un::Neg => a.wrapping_neg(),
        Un::Abs => signed(ty, a).unsigned_abs(),
        Un::Not if ty.kind == Kind::Pred => u64::from(a == 0),
        Un::Not => !a,
        Un::CNot => u64::from(a == 0),
        Un::Popc => u64::from(a.count_ones()),
        Un::Clz => u64::from(a.leading_zeros()).wrapping_sub(64 - u64::from(ty.bits())),
        Un::Brev => a.reverse_bits() >> (64 - ty.bits()),
        _ => a,
    };
    v & ty.mask()
}

fn un_f64(op: Un, a: f64) -> f64 {
    match op {
        Un::Neg => -a,
        Un::Abs => a.abs(),
        Un::Sqrt => a.sqrt(),
        Un::Rsqrt => 1.0 / a.sqrt(),
        Un::Rcp => 1.0 / a,
        Un::Ex2 => a.exp2(),
        Un::Lg2 => a.log2(),
        Un::Sin => a.sin(),
        Un::Cos => a.cos(),
        Un::Tanh => a.tanh(),
        _ => a,
    }
}

pub(super) fn bin(op: Bin, ty: Ty, sat: bool, a: u64, b: u64) -> u64 {
    if ty.is_float() {
        let v = if ty.bytes == 4 {
            let (x, y) = (f32_of(a), f32_of(b));
            of_f32(match op {
                Bin::Add => x + y,
                Bin::Sub => x - y,
                Bin::MulLo => x * y,
                Bin::Div => x / y,
                Bin::Min => x.min(y),
                _ => x.max(y),
            })
        } else {
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            match op {
                Bin::Add => x + y,
                Bin::Sub => x - y,
                Bin::MulLo => x * y,
                Bin::Div => x / y,
                Bin::Min => x.min(y),
                _ => x.max(y),
            }
            .to_bits()
        };
        return clamp01(ty, sat, v);
    }
    let (x, y) = (extend(ty, a), extend(ty, b));
    let (sx, sy) = (x as i64, y as i64);
    let is_signed = ty.is_signed();
    if sat {
        let exact = if matches!(op, Bin::Add) {
            sx + sy
        } else {
            sx - sy
        };
        return exact.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u64 & ty.mask();
    }
    let v = match op {
        Bin::Add => x.wrapping_add(y),
        Bin::Sub => x.wrapping_sub(y),
        Bin::MulLo => x.wrapping_mul(y),
        Bin::MulHi if is_signed => ((i128::from(sx) * i128::from(sy)) >> ty.bits()) as u64,
        Bin::MulHi => ((u128::from(x) * u128::from(y)) >> ty.bits()) as u64,
        Bin::MulWide => return wide(ty, x.wrapping_mul(y)),
        // The device answers all ones where the divisor is 0.
        Bin::Div if y == 0 => u64::MAX,
        Bin::Rem if y == 0 => x,
        Bin::Div if is_signed => sx.wrapping_div(sy) as u64,
        Bin::Div => x / y,
        Bin::Rem if is_signed => sx.wrapping_rem(sy) as u64,
        Bin::Rem => x % y,
        Bin::Min if is_signed => sx.min(sy) as u64,
        Bin::Min => x.min(y),
        Bin::Max if is_signed => sx.max(sy) as u64,
        Bin::Max => x.max(y),
        Bin::And => x & y,
        Bin::Or => x | y,
        Bin::Xor => x ^ y,
        // A shift's amount is 32 bits whatever the type, and stops at the width.
        Bin::Shl => x.checked_shl((b as u32).min(64)).unwrap_or(0),
        Bin::Shr if is_signed => (sx >> (b as u32).min(63)) as u64,
        Bin::Shr => x.checked_shr((b as u32).min(64)).unwrap_or(0),
    };
    v & ty.mask()
}

fn wide(ty: Ty, v: u64) -> u64 {
    v & crate::ptx::code::mask(ty.bytes.saturating_mul(2))
}

pub(super) fn tri(op: Tri, ty: Ty, sat: bool, [a, b, c]: [u64; 3]) -> u64 {
    match op {
        Tri::MadLo => bin(Bin::MulLo, ty, false, a, b).wrapping_add(c) & ty.mask(),
        Tri::MadHi => bin(Bin::MulHi, ty, false, a, b).wrapping_add(c) & ty.mask(),
        Tri::MadWide => wide(ty, bin(Bin::MulWide, ty, false, a, b).wrapping_add(c)),
        Tri::Fma if ty.bytes == 4 => {
            let v = of_f32(f32_of(a).mul_add(f32_of(b), f32_of(c)));
            clamp01(ty, sat, v)
        }
        Tri::Fma => {
            let v = f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c));
            clamp01(ty, sat, v.to_bits())
        }
        Tri::Bfe => {
            let bits = ty.bits();
            let (at, len) = (b as u32 & 0xff, c as u32 & 0xff);
            let a = extend(ty, a) as i64;
            if len == 0 {
                return 0;
            }
            // Above the value are copies of its sign, or zeros.
            let shifted = a >> at.min(63);
            let shifted = if ty.is_signed() || at < 64 {
                shifted
            } else {
                0
            };
            let len = len.min(bits);
            let v = if len >= 64 {
                if ty.is_signed() {
                    shifted as u64
                } else {
                    (a as u64).checked_shr(at).unwrap_or(0)
                }
            } else if ty.is_signed() {
                // The sign is the field's top bit, or the value's where the field goes past it.
                ((shifted << (64 - len)) >> (64 - len)) as u64
            } else {
                let raw = (a as u64).checked_shr(at).unwrap_or(0);
                raw & ((1_u64 << len) - 1)
            };
            v & ty.mask()
        }
        Tri::ShfL => {
            let both = (b & 0xffff_ffff) << 32 | (a & 0xffff_ffff);
            (both << (c & 31)) >> 32
        }
        Tri::ShfR => {
            let both = (b & 0xffff_ffff) << 32 | (a & 0xffff_ffff);
            (both >> (c & 31)) & 0xffff_ffff
        }
        Tri::Prmt => {
            let bytes = ((b & 0xffff_ffff) << 32 | (a & 0xffff_ffff)).to_le_bytes();
            (0..4).fold(0, |v, i| {
                let pick = (c >> (4 * i)) & 0xf;
                let byte = bytes[(pick & 7) as usize];
                let byte = if pick & 8 == 0 {
                    byte
                } else {
                    ((byte as i8) >> 7) as u8
                };
                v | u64::from(byte) << (8 * i)
            })
        }
    }
}

pub(super) fn bfi(ty: Ty, [a, b, at, len]: [u64; 4]) -> u64 {
    let (at, len) = (at as u32 & 0xff, len as u32 & 0xff);
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let field = ones.checked_shl(at).unwrap_or(0) & ty.mask();
    (b & !field | a.checked_shl(at).unwrap_or(0) & field) & ty.mask()
}

pub(super) fn lop3(table: u8, [a, b, c]: [u64; 3]) -> u64 {
    let mut v = 0;
    for row in 0..8_u8 {
        if table >> row & 1 == 1 {
            let pick = |bit: u8, x: u64| if row >> bit & 1 == 1 { x } else { !x };
            v |= pick(2, a) & pick(1, b) & pick(0, c);
        }
    }
    v & 0xffff_ffff
}

pub(super) fn compare(op: CmpOp, ty: Ty, a: u64, b: u64) -> bool {
    let ordering = if !ty.is_float() {
        let (x, y) = (extend(ty, a), extend(ty, b));
        Some(if ty.is_signed() {
            (x as i64).cmp(&(y as i64))
        } else {
            x.cmp(&y)
        })
    } else if ty.bytes == 4 {
        f32_of(a).partial_cmp(&f32_of(b))
    } else {
        f64::from_bits(a).partial_cmp(&f64::from_bits(b))
    };
    let (cmp, unordered) = match op {
        CmpOp::Num => return ordering.is_some(),
        CmpOp::Nan => return ordering.is_none(),
        CmpOp::Ordered(cmp) => (cmp, false),
        CmpOp::Unordered(cmp) => (cmp, true),
    };
    ordering.map_or(unordered, |o| match cmp {
        Cmp::Eq => o.is_eq(),
        Cmp::Ne => o.is_ne(),
        Cmp::Lt => o.is_lt(),
        Cmp::Le => o.is_le(),
        Cmp::Gt => o.is_gt(),
        Cmp::Ge => o.is_ge(),
    })
}

pub(super) fn boolean(op: Bool, a: bool, b: bool) -> bool {
    match op {
        Bool::And => a && b,
        Bool::Or => a || b,
        Bool::Xor => a != b,
    }
}

fn rounded(round: Round, f: f64) -> f64 {
    match round {
        Round::Near => f.round_ties_even(),
        Round::Zero => f.trunc(),
        Round::Down => f.floor(),
        Round::Up => f.ceil(),
    }
}

/// Converts; the result's bits above its type are copies of its sign, or zeros.
pub(super) fn cvt(to: Ty, from: Ty, round: Round, integral: bool, sat: bool, a: u64) -> u64 {
    let a = extend(from, a);
    if from.is_float() {
        let single = from.bytes == 4;
        let mut f = if single {
            f64::from(f32_of(a))
        } else {
            f64::from_bits(a)
        };
        if to.is_float() {
            if integral {
                f = rounded(round, f);
            }
            let v = if to.bytes == 4 {
                of_f32(f as f32)
            } else {
                f.to_bits()
            };
            return clamp01(to, sat, v);
        }
        // Casts clamp to the bounds of their type, as the device does.
        let f = rounded(round, f);
        return if to.is_signed() {
            let (low, high) = bounds(to);
            (f as i64).clamp(low, high as i64) as u64
        } else {
            (f as u64).min(to.mask())
        };
    }
    if to.is_float() {
        let v = match (to.bytes, from.is_signed()) {
            (4, true) => of_f32(directed(
                round,
                f64::from(a as i64 as f32),
                a as i64 as f32,
                a as i64 as i128,
            )),
            (4, false) => of_f32(directed(
                round,
                f64::from(a as f32),
                a as f32,
                i128::from(a),
            )),
            (_, true) => (a as i64 as f64).to_bits(),
            (_, false) => (a as f64).to_bits(),
        };
        return clamp01(to, sat, v);
    }
    let v = if sat {
        let value = if from.is_signed() {
            i128::from(a as i64)
        } else {
            i128::from(a)
        };
        let (low, high) = bounds(to);
        value.clamp(i128::from(low), i128::from(high)) as u64
    } else {
        a
    };
    extend(to, v)
}

/// The neighbour of `near` on the side that `round` asks for, where `near` is not `exact`.
fn directed(round: Round, wide: f64, near: f32, exact: i128) -> f32 {
    let over = wide as i128 > exact;
    let under = (wide as i128) < exact;
    let down = matches!(round, Round::Down) || (matches!(round, Round::Zero) && exact > 0);
    let up = matches!(round, Round::Up) || (matches!(round, Round::Zero) && exact < 0);
    if over && down {
        near.next_down()
    } else if under && up {
        near.next_up()
    } else {
        near
    }
}

fn bounds(ty: Ty) -> (i64, u64) {
    if ty.is_signed() {
        let high = ty.mask() >> 1;
        (-(high as i64) - 1, high)
    } else {
        (0, ty.mask())
    }
}

pub(super) fn atom(op: Atom, ty: Ty, old: u64, b: u64, c: u64) -> u64 {
    match op {
        Atom::Add => bin(Bin::Add, ty, false, old, b),
        Atom::Min => bin(Bin::Min, ty, false, old, b),
        Atom::Max => bin(Bin::Max, ty, false, old, b),
        Atom::Inc if old >= b => 0,
        Atom::Inc => old + 1,
        Atom::Dec if old == 0 || old > b => b,
        Atom::Dec => old - 1,
        Atom::And => old & b,
        Atom::Or => old | b,
        Atom::Xor => old ^ b,
        Atom::Exch => b,
        Atom::Cas if old == b => c,
        Atom::Cas => old,
    }
}
