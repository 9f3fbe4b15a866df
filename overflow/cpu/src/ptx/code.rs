//! What PTX is lowered to: registers are numbers, labels are positions, names are addresses.

/// How the bits of a value are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bits,
    Unsigned,
    Signed,
    Float,
    Pred,
}

/// A type: how, and how many bytes (1, 2, 4, 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ty {
    pub(crate) kind: Kind,
    pub(crate) bytes: u8,
}

impl Ty {
    pub(crate) const PRED: Ty = Ty {
        kind: Kind::Pred,
        bytes: 1,
    };

    /// The type of a name such as `u32`.
    pub(crate) fn parse(name: &str) -> Option<Ty> {
        if name == "pred" {
            return Some(Ty::PRED);
        }
        let (kind, bits) = name.split_at_checked(1)?;
        let kind = match kind {
            "b" => Kind::Bits,
            "u" => Kind::Unsigned,
            "s" => Kind::Signed,
            "f" => Kind::Float,
            _ => return None,
        };
        let bytes = match bits {
            "8" if kind != Kind::Float => 1,
            "16" if kind != Kind::Float => 2,
            "32" => 4,
            "64" => 8,
            _ => return None,
        };
        Some(Ty { kind, bytes })
    }

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.bytes) * 8
    }

    pub(crate) fn mask(self) -> u64 {
        mask(self.bytes)
    }

    pub(crate) fn is_float(self) -> bool {
        self.kind == Kind::Float
    }

    pub(crate) fn is_signed(self) -> bool {
        self.kind == Kind::Signed
    }
}

/// Ones in the low `bytes` bytes.
pub(crate) fn mask(bytes: u8) -> u64 {
    match bytes {
        1 => 0xff,
        2 => 0xffff,
        4 => 0xffff_ffff,
        _ => u64::MAX,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Lane,
    Warp,
    Nwarp,
    LaneMask(Cmp),
    Clock,
    DynamicShared,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Reg(u32),
    Imm(u64),
    /// Address of a variable of the module, and an offset.
    Global(u32, i64),
    Special(Special),
}

/// A register that is written, and its width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dst {
    pub(crate) reg: u32,
    pub(crate) bytes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Un {
    Mov,
    Neg,
    Abs,
    Not,
    CNot,
    Sqrt,
    Rsqrt,
    Rcp,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
    Popc,
    Clz,
    Brev,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Bin {
    Add,
    Sub,
    MulLo,
    MulHi,
    MulWide,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Tri {
    MadLo,
    MadHi,
    MadWide,
    Fma,
    Bfe,
    ShfL,
    ShfR,
    Prmt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum CmpOp {
    /// False where an operand is not a number.
    Ordered(Cmp),
    /// True where an operand is not a number.
    Unordered(Cmp),
    Num,
    Nan,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Bool {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Round {
    Near,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Atom {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
    Exch,
    Cas,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Shfl {
    Up,
    Down,
    Bfly,
    Idx,
}

/// An address: a base and an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addr {
    pub(crate) space: Space,
    pub(crate) base: Operand,
    pub(crate) offset: i64,
}

/// What the threads of a warp do together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Together {
    Vote {
        d: u32,
        how: Vote,
        a: Operand,
        not: bool,
    },
    Shfl {
        d: u32,
        p: Option<u32>,
        how: Shfl,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    Sync,
    ActiveMask {
        d: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Nop,
    Un(Un, Ty, u32, Operand),
    Bin(Bin, Ty, bool, u32, Operand, Operand),
    Tri(Tri, Ty, bool, u32, [Operand; 3]),
    Bfi(Ty, u32, [Operand; 4]),
    Lop3(u8, u32, [Operand; 3]),
    /// Low part first.
    Pack(u8, u32, Box<[Operand]>),
    Unpack(u8, Box<[Option<u32>]>, Operand),
    Setp {
        cmp: CmpOp,
        ty: Ty,
        p: Option<u32>,
        q: Option<u32>,
        a: Operand,
        b: Operand,
        with: Option<(Bool, Operand, bool)>,
    },
    Selp(u32, Operand, Operand, Operand),
    Cvt {
        to: Ty,
        from: Ty,
        round: Round,
        integral: bool,
        sat: bool,
        d: Dst,
        a: Operand,
    },
    /// Between generic and the space's own addresses: what is added.
    Cvta(u32, Operand, u64),
    Ld(Ty, Addr, Box<[Option<Dst>]>),
    St(Ty, Addr, Box<[Operand]>),
    Atom {
        how: Atom,
        ty: Ty,
        addr: Addr,
        d: Option<u32>,
        b: Operand,
        c: Operand,
    },
    Bra(usize),
    Exit,
    Trap,
    Bar {
        id: Operand,
        count: Option<Operand>,
        waits: bool,
    },
    Together {
        what: Together,
        mask: Operand,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) op: Op,
    pub(crate) line: u32,
}

/// A parameter of a kernel, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// From the start of the parameters.
    pub offset: usize,
    /// Of the parameter.
    pub size: usize,
}

/// A kernel.
#[derive(Debug, Default)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: usize,
    pub(crate) code: Vec<Instr>,
    pub(crate) registers: u32,
    /// Bytes of static shared memory.
    pub(crate) shared: usize,
    /// Bytes of local memory of a thread.
    pub(crate) local: usize,
    /// Threads a block, where the program says.
    pub(crate) max_threads: Option<u32>,
}

impl Kernel {
    /// Its name in the module.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters, in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }
}

/// A variable of a module, in global or constant memory.
#[derive(Debug)]
pub(crate) struct Var {
    pub(crate) name: String,
    /// Whether the host reaches it too.
    pub(crate) managed: bool,
    pub(crate) size: usize,
    /// May be shorter than `size`: the rest is zero.
    pub(crate) init: Vec<u8>,
    /// Where addresses of other variables are put: at, variable, offset.
    pub(crate) relocations: Vec<(usize, u32, i64)>,
}

/// A parsed module.
#[derive(Debug, Default)]
pub struct Module {
    pub(crate) kernels: Vec<std::sync::Arc<Kernel>>,
    pub(crate) vars: Vec<Var>,
}

impl Module {
    /// Its kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter().map(|k| &**k)
    }
}

/// Where a window of generic addresses begins. None of them is an address of the host or of a
/// device.
pub(crate) const SHARED_WINDOW: u64 = 1 << 56;
pub(crate) const LOCAL_WINDOW: u64 = 2 << 56;
pub(crate) const PARAM_WINDOW: u64 = 3 << 56;
/// Where dynamic shared memory begins among the addresses of shared memory: after any static.
pub(crate) const DYNAMIC_SHARED: u64 = 1 << 24;
