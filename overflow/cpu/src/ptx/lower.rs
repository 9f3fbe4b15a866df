//! Opcodes to operations.

use super::PtxError;
use super::code::*;
use super::instr::{CACHES, Mods, space};
use super::parse::Parser;

const U32: Ty = Ty {
    kind: Kind::Unsigned,
    bytes: 4,
};
const U64: Ty = Ty {
    kind: Kind::Unsigned,
    bytes: 8,
};

type Result<T> = std::result::Result<T, PtxError>;
/// `None`: the opcode, or what it says of a type, is not known.
type Lowered = Result<Option<Op>>;

/// `?` for what makes an instruction one that is not known.
macro_rules! need {
    ($e:expr) => {
        match $e {
            Some(found) => found,
            None => return Ok(None),
        }
    };
}

fn comparison(name: &str) -> Option<CmpOp> {
    use Cmp::*;
    Some(match name {
        "eq" => CmpOp::Ordered(Eq),
        "ne" => CmpOp::Ordered(Ne),
        "lt" | "lo" => CmpOp::Ordered(Lt),
        "le" | "ls" => CmpOp::Ordered(Le),
        "gt" | "hi" => CmpOp::Ordered(Gt),
        "ge" | "hs" => CmpOp::Ordered(Ge),
        "equ" => CmpOp::Unordered(Eq),
        "neu" => CmpOp::Unordered(Ne),
        "ltu" => CmpOp::Unordered(Lt),
        "leu" => CmpOp::Unordered(Le),
        "gtu" => CmpOp::Unordered(Gt),
        "geu" => CmpOp::Unordered(Ge),
        "num" => CmpOp::Num,
        "nan" => CmpOp::Nan,
        _ => return None,
    })
}

impl Parser<'_> {
    pub(super) fn lower(&mut self, base: &str, mods: &mut Mods) -> Lowered {
        match base {
            "mov" => self.mov(mods),
            "ld" | "ldu" | "st" => self.memory(base == "st", mods),
            "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor"
            | "shl" | "shr" => self.binary(base, mods),
            "neg" | "abs" | "not" | "cnot" | "sqrt" | "rsqrt" | "rcp" | "ex2" | "lg2" | "sin"
            | "cos" | "tanh" | "popc" | "clz" | "brev" => self.unary(base, mods),
            "mad" | "fma" | "bfe" | "bfi" | "shf" | "prmt" | "lop3" => self.three(base, mods),
            "setp" => self.setp(mods),
            "selp" => {
                let ty = need!(mods.pick(Ty::parse));
                let d = self.register()?.reg;
                let (a, b) = (self.next(ty)?, self.next(ty)?);
                Ok(Some(Op::Selp(d, a, b, self.next(Ty::PRED)?)))
            }
            "cvt" => self.cvt(mods),
            "cvta" => self.cvta(mods),
            "atom" | "red" => self.atom(base == "red", mods),
            "bra" => {
                mods.take("uni");
                let label = self.word()?;
                self.jump(label);
                Ok(Some(Op::Bra(usize::MAX)))
            }
            "ret" | "exit" => {
                mods.take("uni");
                Ok(Some(Op::Exit))
            }
            "trap" => Ok(Some(Op::Trap)),
            "membar" | "fence" => {
                mods.ignore(&["gl", "cta", "gpu", "sys", "cluster", "sc", "acq_rel"]);
                Ok(Some(Op::Nop))
            }
            "nanosleep" => {
                mods.take("u32");
                self.value(U32)?;
                Ok(Some(Op::Nop))
            }
            "bar" | "barrier" => self.barrier(mods),
            "vote" | "shfl" | "activemask" => self.together(base, mods),
            _ => Ok(None),
        }
    }

    fn mov(&mut self, mods: &mut Mods) -> Lowered {
        let ty = need!(mods.pick(Ty::parse));
        if self.peek() == Some(super::lex::Tok::Punct(b'{')) {
            let parts = self.list(|p| Ok(p.register_or_sink()?.map(|d| d.reg)))?;
            let bytes = need!(part(ty, parts.len()));
            let from = self.next(ty)?;
            return Ok(Some(Op::Unpack(bytes, parts.into(), from)));
        }
        let d = self.register()?.reg;
        self.comma()?;
        if self.peek() == Some(super::lex::Tok::Punct(b'{')) {
            let parts = self.list(|p| p.value(U64))?;
            let bytes = need!(part(ty, parts.len()));
            return Ok(Some(Op::Pack(bytes, d, parts.into())));
        }
        Ok(Some(Op::Un(Un::Mov, ty, d, self.value(ty)?)))
    }

    fn memory(&mut self, store: bool, mods: &mut Mods) -> Lowered {
        mods.ignore(CACHES);
        let space = mods.pick(space).unwrap_or(Space::Generic);
        let count = if mods.take("v2") {
            2
        } else if mods.take("v4") {
            4
        } else {
            1
        };
        let ty = need!(mods.pick(Ty::parse));
        if store {
            let addr = self.address(space)?;
            self.comma()?;
            let values = self.list(|p| p.value(ty))?;
            return Ok((values.len() == count && space != Space::Param)
                .then(|| Op::St(ty, addr, values.into())));
        }
        let registers = self.list(Self::register_or_sink)?;
        self.comma()?;
        let addr = self.address(space)?;
        Ok((registers.len() == count).then(|| Op::Ld(ty, addr, registers.into())))
    }

    fn binary(&mut self, base: &str, mods: &mut Mods) -> Lowered {
        let ty = need!(mods.pick(Ty::parse));
        let sat = mods.take("sat");
        if ty.is_float() {
            mods.ignore(&["rn", "ftz", "full", "approx"]);
        }
        let op = match base {
            "add" => Bin::Add,
            "sub" => Bin::Sub,
            "mul" if ty.is_float() || mods.take("lo") => Bin::MulLo,
            "mul" if mods.take("hi") => Bin::MulHi,
            "mul" if mods.take("wide") && ty.bytes < 8 => Bin::MulWide,
            "div" => Bin::Div,
            "rem" if !ty.is_float() => Bin::Rem,
            "min" => Bin::Min,
            "max" => Bin::Max,
            "and" => Bin::And,
            "or" => Bin::Or,
            "xor" => Bin::Xor,
            "shl" => Bin::Shl,
            "shr" => Bin::Shr,
            _ => return Ok(None),
        };
        let bitwise = matches!(op, Bin::And | Bin::Or | Bin::Xor | Bin::Shl | Bin::Shr);
        if bitwise == ty.is_float() && bitwise
            || (ty.kind == Kind::Pred && !matches!(op, Bin::And | Bin::Or | Bin::Xor))
            || (ty.kind == Kind::Bits && !bitwise)
            || (sat && !(ty.is_float() || (ty.is_signed() && ty.bytes == 4)))
        {
            return Ok(None);
        }
        let d = self.register()?.reg;
        let a = self.next(ty)?;
        let shift = matches!(op, Bin::Shl | Bin::Shr);
        let b = self.next(if shift { U32 } else { ty })?;
        Ok(Some(Op::Bin(op, ty, sat, d, a, b)))
    }

    fn unary(&mut self, base: &str, mods: &mut Mods) -> Lowered {
        let ty = need!(mods.pick(Ty::parse));
        if ty.is_float() {
            mods.ignore(&["rn", "ftz", "approx"]);
        }
        let (op, float) = match base {
            "neg" => (Un::Neg, ty.is_float()),
            "abs" => (Un::Abs, ty.is_float()),
            "not" => (Un::Not, false),
            "cnot" => (Un::CNot, false),
            "popc" => (Un::Popc, false),
            "clz" => (Un::Clz, false),
            "brev" => (Un::Brev, false),
            "sqrt" => (Un::Sqrt, true),
            "rsqrt" => (Un::Rsqrt, true),
            "rcp" => (Un::Rcp, true),
            "ex2" => (Un::Ex2, true),
            "lg2" => (Un::Lg2, true),
            "sin" => (Un::Sin, true),
            "cos" => (Un::Cos, true),
            "tanh" => (Un::Tanh, true),
            _ => return Ok(None),
        };
        if float != ty.is_float() || (ty.kind == Kind::Pred && base != "not") {
            return Ok(None);
        }
        let d = self.register()?.reg;
        Ok(Some(Op::Un(op, ty, d, self.next(ty)?)))
    }

    fn three(&mut self, base: &str, mods: &mut Mods) -> Lowered {
        let left = mods.take("l");
        let clamp = mods.take("clamp");
        let ty = need!(mods.pick(Ty::parse));
        let wide = Ty {
            bytes: ty.bytes.saturating_mul(2),
            ..ty
        };
        let sat = ty.is_float() && mods.take("sat");
        if ty.is_float() {
            mods.ignore(&["rn", "ftz"]);
        }
        let (op, tys) = match base {
            "fma" if ty.is_float() => (Tri::Fma, [ty; 3]),
            "mad" if ty.is_float() => (Tri::Fma, [ty; 3]),
            "mad" if mods.take("lo") => (Tri::MadLo, [ty; 3]),
            "mad" if mods.take("hi") => (Tri::MadHi, [ty; 3]),
            "mad" if mods.take("wide") && ty.bytes < 8 => (Tri::MadWide, [ty, ty, wide]),
            "bfe" if !ty.is_float() && ty.bytes >= 4 => (Tri::Bfe, [ty, U32, U32]),
            "shf" if !clamp && ty.bytes == 4 && mods.take("wrap") => {
                let right = !left && mods.take("r");
                (if right { Tri::ShfR } else { Tri::ShfL }, [U32; 3])
            }
            "prmt" if ty.bytes == 4 => (Tri::Prmt, [U32; 3]),
            "bfi" if !ty.is_float() && ty.bytes >= 4 => {
                let d = self.register()?.reg;
                let abcd = [
                    self.next(ty)?,
                    self.next(ty)?,
                    self.next(U32)?,
                    self.next(U32)?,
                ];
                return Ok(Some(Op::Bfi(ty, d, abcd)));
            }
            "lop3" if ty.bytes == 4 => {
                let d = self.register()?.reg;
                let abc = [self.next(ty)?, self.next(ty)?, self.next(ty)?];
                self.comma()?;
                let table = self.int()? as u8;
                return Ok(Some(Op::Lop3(table, d, abc)));
            }
            _ => return Ok(None),
        };
        let d = self.register()?.reg;
        let [a, b, c] = tys;
        let abc = [self.next(a)?, self.next(b)?, self.next(c)?];
        Ok(Some(Op::Tri(op, ty, sat, d, abc)))
    }

    fn setp(&mut self, mods: &mut Mods) -> Lowered {
        mods.take("ftz");
        let cmp = need!(mods.pick(comparison));
        let with = mods.pick(|m| match m {
            "and" => Some(Bool::And),
            "or" => Some(Bool::Or),
            "xor" => Some(Bool::Xor),
            _ => None,
        });
        let ty = need!(mods.pick(Ty::parse));
        let float_only = !matches!(cmp, CmpOp::Ordered(_));
        if float_only && !ty.is_float() {
            return Ok(None);
        }
        let p = self.register_or_sink()?.map(|d| d.reg);
        let q = if self.eat(b'|') {
            self.register_or_sink()?.map(|d| d.reg)
        } else {
            None
        };
        let (a, b) = (self.next(ty)?, self.next(ty)?);
        let with = match with {
            Some(how) => {
                self.comma()?;
                let (c, not) = self.predicate()?;
                Some((how, c, not))
            }
            None => None,
        };
        Ok(Some(Op::Setp {
            cmp,
            ty,
            p,
            q,
            a,
            b,
            with,
        }))
    }

    fn cvt(&mut self, mods: &mut Mods) -> Lowered {
        mods.take("ftz");
        let sat = mods.take("sat");
        let round = mods.pick(|m| {
            Some(match m {
                "rn" => (Round::Near, false),
                "rz" => (Round::Zero, false),
                "rm" => (Round::Down, false),
                "rp" => (Round::Up, false),
                "rni" => (Round::Near, true),
                "rzi" => (Round::Zero, true),
                "rmi" => (Round::Down, true),
                "rpi" => (Round::Up, true),
                _ => return None,
            })
        });
        let to = need!(mods.pick(Ty::parse));
        let from = need!(mods.pick(Ty::parse));
        let (round, integral) = round.unwrap_or((Round::Near, false));
        // Only a whole number is rounded in another way than to the nearest.
        let whole = integral || !to.is_float() || !from.is_float();
        if [to, from].iter().any(|t| t.kind == Kind::Pred)
            || (to.is_float() && !matches!(round, Round::Near) && !(whole && from.is_float()))
        {
            return Ok(None);
        }
        let d = self.register()?;
        let a = self.next(from)?;
        Ok(Some(Op::Cvt {
            to,
            from,
            round,
            integral,
            sat,
            d,
            a,
        }))
    }

    fn cvta(&mut self, mods: &mut Mods) -> Lowered {
        let back = mods.take("to");
        let window = match need!(mods.pick(space)) {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param => PARAM_WINDOW,
            Space::Global | Space::Generic => 0,
        };
        if !mods.take("u64") {
            return Ok(None);
        }
        let add = if back { window.wrapping_neg() } else { window };
        let d = self.register()?.reg;
        Ok(Some(Op::Cvta(d, self.next(U64)?, add)))
    }

    fn atom(&mut self, red: bool, mods: &mut Mods) -> Lowered {
        mods.ignore(CACHES);
        let space = mods.pick(space).unwrap_or(Space::Generic);
        let how = need!(mods.pick(|m| {
            Some(match m {
                "add" => Atom::Add,
                "min" => Atom::Min,
                "max" => Atom::Max,
                "inc" => Atom::Inc,
                "dec" => Atom::Dec,
                "and" => Atom::And,
                "or" => Atom::Or,
                "xor" => Atom::Xor,
                "exch" => Atom::Exch,
                "cas" => Atom::Cas,
                _ => return None,
            })
        }));
        let ty = need!(mods.pick(Ty::parse));
        let arithmetic = !matches!(
            how,
            Atom::And | Atom::Or | Atom::Xor | Atom::Exch | Atom::Cas
        );
        if ty.bytes < 4
            || (ty.is_float() && !matches!(how, Atom::Add | Atom::Exch))
            || (arithmetic && ty.kind == Kind::Bits)
            || !matches!(space, Space::Generic | Space::Global | Space::Shared)
        {
            return Ok(None);
        }
        let d = if red {
            None
        } else {
            let d = self.register_or_sink()?;
            self.comma()?;
            d.map(|d| d.reg)
        };
        let addr = self.address(space)?;
        let b = self.next(ty)?;
        let c = match how {
            Atom::Cas => self.next(ty)?,
            _ => Operand::Imm(0),
        };
        Ok(Some(Op::Atom {
            how,
            ty,
            addr,
            d,
            b,
            c,
        }))
    }

    fn barrier(&mut self, mods: &mut Mods) -> Lowered {
        mods.ignore(&["cta", "aligned"]);
        if mods.take("warp") {
            if !mods.take("sync") {
                return Ok(None);
            }
            let mask = self.value(U32)?;
            return Ok(Some(Op::Together {
                what: Together::Sync,
                mask,
            }));
        }
        let waits = mods.take("sync");
        if !waits && !mods.take("arrive") {
            return Ok(None);
        }
        let id = self.value(U32)?;
        let count = if self.eat(b',') {
            Some(self.value(U32)?)
        } else {
            None
        };
        Ok(Some(Op::Bar { id, count, waits }))
    }

    fn together(&mut self, base: &str, mods: &mut Mods) -> Lowered {
        if base == "activemask" {
            mods.take("b32");
            let d = self.register()?.reg;
            return Ok(Some(Op::Together {
                what: Together::ActiveMask { d },
                mask: Operand::Imm(0),
            }));
        }
        mods.ignore(&["b32", "pred"]);
        if !mods.take("sync") {
            return Ok(None);
        }
        let d = self.register()?.reg;
        if base == "vote" {
            let how = need!(mods.pick(|m| {
                Some(match m {
                    "all" => Vote::All,
                    "any" => Vote::Any,
                    "uni" => Vote::Uni,
                    "ballot" => Vote::Ballot,
                    _ => return None,
                })
            }));
            self.comma()?;
            let (a, not) = self.predicate()?;
            let what = Together::Vote { d, how, a, not };
            let mask = self.next(U32)?;
            return Ok(Some(Op::Together { what, mask }));
        }
        let how = need!(mods.pick(|m| {
            Some(match m {
                "up" => Shfl::Up,
                "down" => Shfl::Down,
                "bfly" => Shfl::Bfly,
                "idx" => Shfl::Idx,
                _ => return None,
            })
        }));
        let p = if self.eat(b'|') {
            Some(self.register()?.reg)
        } else {
            None
        };
        let (a, b, c) = (self.next(U32)?, self.next(U32)?, self.next(U32)?);
        let what = Together::Shfl { d, p, how, a, b, c };
        let mask = self.next(U32)?;
        Ok(Some(Op::Together { what, mask }))
    }
}

/// Bytes of each of `n` parts of `ty`.
fn part(ty: Ty, n: usize) -> Option<u8> {
    match (ty.bytes, n) {
        (8, 2) => Some(4),
        (8, 4) | (4, 2) => Some(2),
        (4, 4) | (2, 2) => Some(1),
        _ => None,
    }
}
