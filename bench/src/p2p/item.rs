//! What is sent between two processes, where it lies, how it goes, and what is asked of it. Pure; both
//! processes of a pair derive the same lists from the same options.

use std::sync::OnceLock;
use std::time::Duration;

use gapless::Protocol;
use gapless_cli::pingpong::{Budget, Effort, Ends, Setting, Source, Trial, Where};
use gapless_layouts::{Case, cases, default_set, papers};

use super::marks::MarkKind;
use crate::error::Failure;
use crate::subjects::{contiguous_case, list};

/// A layout of a matrix whose length another message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// [`Shape::V`], [`Shape::X`], and [`Shape::FromV`] and [`Shape::ToV`].
    V,
    /// [`Shape::T`].
    T,
}

/// What is sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Without gaps.
    Contiguous,
    /// Without gaps, and as long as V, or as T, of this size.
    Flat(Of),
    /// A sub-matrix, at both ends.
    V,
    /// A triangle, at both ends.
    T,
    /// A transpose: sent by rows, received without gaps.
    X,
    /// V sent, received without gaps.
    FromV,
    /// Sent without gaps, received as V.
    ToV,
    /// Blocks of three doubles, ascending.
    List,
    /// The same, shuffled.
    Shuffled,
    /// What a rank sends another for a two-dimensional FFT.
    Fft,
    /// A family of the catalogue.
    Named(&'static str),
    /// One of the catalogue's [default set](gapless_layouts::default_set), which is as large as it is.
    Catalogued(usize),
}

/// How large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A payload of at least so many bytes, and little more.
    Bytes(u64),
    /// As the layout understands it: a matrix's edge.
    Edge(u64),
    /// The layout's own.
    Own,
}

/// The number whose square is `square` at least, and a multiple of `step`.
fn root(square: u64, step: u64) -> u64 {
    let root = square.isqrt();
    let root = if root * root < square { root + 1 } else { root };
    root.next_multiple_of(step)
}

/// Columns of V and X begin at multiples of so many doubles.
const STEP: u64 = 4;

impl Shape {
    /// The message.
    ///
    /// # Errors
    /// A size that makes no sense to the layout.
    pub fn case(self, size: Size) -> Result<Case, Failure> {
        let edge = |of_bytes: fn(u64) -> u64| match size {
            Size::Bytes(bytes) => of_bytes(bytes),
            Size::Edge(edge) => edge,
            Size::Own => 0,
        };
        let square = |bytes: u64| root(bytes.div_ceil(8), STEP);
        let bytes = match size {
            Size::Bytes(bytes) => bytes,
            Size::Edge(edge) => 8 * edge * edge,
            Size::Own => 0,
        };
        Ok(match self {
            Shape::Contiguous => contiguous_case(bytes),
            Shape::Flat(Of::V) => contiguous_case(Shape::V.case(size)?.payload_bytes),
            Shape::Flat(Of::T) => contiguous_case(Shape::T.case(size)?.payload_bytes),
            Shape::V => papers::v(edge(square))?,
            // n (n + 1) / 2 doubles.
            Shape::T => papers::t(edge(|bytes| root(bytes.div_ceil(4), STEP)))?,
            Shape::X => papers::x(edge(square))?,
            Shape::FromV => papers::v_contiguous(edge(square))?,
            Shape::ToV => {
                let case = papers::v_contiguous(edge(square))?;
                Case {
                    name: case.name.replace("V-contiguous", "contiguous-V"),
                    send: case.recv,
                    recv: case.send,
                    expected_send_blocks: case.expected_recv_blocks,
                    expected_recv_blocks: case.expected_send_blocks,
                    ..case
                }
            }
            Shape::List => list(bytes.div_ceil(24), 3, false)?,
            Shape::Shuffled => list(bytes.div_ceil(24), 3, true)?,
            // b × b complex numbers of a matrix of 2 b columns.
            Shape::Fft => named("fft2d", Some(2 * edge(|bytes| root(bytes.div_ceil(16), STEP))))?,
            Shape::Named(family) => {
                let n = match size {
                    Size::Edge(n) => Some(n),
                    _ => None,
                };
                named(family, n)?
            }
            Shape::Catalogued(at) => catalogue().get(at).cloned().ok_or_else(|| {
                let why = format!("the catalogue has {} messages, not {at}", catalogue().len());
                Failure::Option { option: "layout", why }
            })?,
        })
    }
}

/// The messages that [`Shape::Catalogued`] means.
pub(crate) fn catalogue() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(default_set)
}

/// The last of a family's messages at a size: of several sets, the largest.
fn named(family: &str, n: Option<u64>) -> Result<Case, Failure> {
    let nothing = || Failure::Option { option: "layout", why: format!("{family} has no messages") };
    cases(family, n)?.pop().ok_or_else(nothing)
}

/// The protocol of a name, if there is one.
#[must_use]
pub fn protocol(name: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
}

/// One message to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageItem {
    /// What.
    pub shape: Shape,
    /// How large.
    pub size: Size,
    /// Where, at each end.
    pub ends: Ends,
    /// Where memory comes from.
    pub source: Source,
    /// How it goes.
    pub setting: Setting,
    /// Whether copies to and from page-locked memory are measured beside it.
    pub pinned: bool,
    /// Hundredths of each GPU's multiprocessors that a kernel keeps busy meanwhile.
    pub occupied: u32,
    /// Milliseconds between one round trip and the next.
    pub apart: u32,
    /// How it is judged.
    pub kind: MarkKind,
}

impl MessageItem {
    /// A message that goes as the cost model likes, and of which nothing is asked.
    #[must_use]
    pub fn new(shape: Shape, size: Size, ends: Ends) -> MessageItem {
        let setting = Setting::default();
        MessageItem {
            shape,
            size,
            ends,
            source: Source::Alloc,
            setting,
            pinned: false,
            occupied: 0,
            apart: 0,
            kind: MarkKind::Free,
        }
    }

    /// Judged.
    #[must_use]
    pub fn judged(self, kind: MarkKind) -> MessageItem {
        let pinned = self.pinned || kind == MarkKind::NoIpc;
        MessageItem { kind, pinned, ..self }
    }

    /// Out of ordinary memory and into it, where it lies in the host's.
    #[must_use]
    pub fn on_heap(self) -> MessageItem {
        MessageItem { source: Source::Heap, ..self }
    }

    /// Out of ordinary memory that is page-locked, and into it, where it lies in the host's.
    #[must_use]
    pub fn page_locked(self) -> MessageItem {
        MessageItem { source: Source::Locked, ..self }
    }

    /// In memory that is allocated to the message's size, and judged by its kind.
    #[must_use]
    pub fn to_size(self, kind: MarkKind) -> MessageItem {
        let foreign = kind == MarkKind::Foreign;
        let source = if foreign { Source::ForeignToSize } else { Source::ToSize };
        MessageItem { source, kind, ..self }
    }

    /// By this protocol.
    #[must_use]
    pub fn by(self, protocol: Protocol) -> MessageItem {
        MessageItem { setting: Setting { force: Some(protocol), ..self.setting }, ..self }
    }

    /// In fragments of this length, so many at a time.
    #[must_use]
    pub fn in_fragments(self, bytes: u32, depth: u32) -> MessageItem {
        let setting = Setting { fragment_bytes: Some(bytes), depth: Some(depth), ..self.setting };
        MessageItem { setting, ..self }
    }

    /// Beside a kernel that keeps so many hundredths of each GPU busy.
    #[must_use]
    pub fn beside(self, occupied: u32) -> MessageItem {
        MessageItem { occupied, ..self }
    }

    /// One every so many milliseconds.
    #[must_use]
    pub fn every(self, apart: u32) -> MessageItem {
        MessageItem { apart, ..self }
    }

    /// Whether it is the same message, however it is judged.
    #[must_use]
    pub fn is_like(&self, other: &MessageItem) -> bool {
        let how = |of: &MessageItem| (of.setting, of.occupied, of.source, of.apart);
        let key = |of: &MessageItem| (of.shape, of.size, of.ends, how(of));
        key(self) == key(other)
    }

    /// What the ping-pong measures.
    ///
    /// # Errors
    /// As [`Shape::case`].
    pub fn trial(&self, seconds: f64) -> Result<Trial, Failure> {
        let MessageItem { shape, size, ends, source, setting, pinned, apart, .. } = *self;
        let pause = Duration::from_millis(apart.into());
        let effort = Effort::messages(seconds, pinned).apart(pause);
        let mut case = shape.case(size)?;
        if apart > 0 {
            case.name += &format!(", every {apart} ms");
        }
        Ok(Trial { case, ends, source, setting, effort })
    }

    /// What it is, before its datatypes are made.
    #[must_use]
    pub fn label(&self) -> String {
        let shape = match self.shape {
            Shape::FromV => "V-contiguous".to_owned(),
            Shape::ToV => "contiguous-V".to_owned(),
            Shape::Flat(of) => format!("contiguous as {of:?}"),
            Shape::Named(family) => family.to_owned(),
            Shape::Catalogued(at) => match catalogue().get(at) {
                Some(case) => case.name.clone(),
                None => format!("message {at} of the catalogue"),
            },
            shape => format!("{shape:?}"),
        };
        match self.size {
            Size::Bytes(bytes) => format!("{shape} of {}", gapless_report::Bytes(bytes)),
            Size::Edge(edge) => format!("{shape} n={edge}"),
            Size::Own => shape,
        }
    }

    /// What was asked for, for the name of the operation: empty if nothing was.
    #[must_use]
    pub fn asked(&self) -> String {
        let Setting { force, fragment_bytes, depth } = self.setting;
        let fragments = fragment_bytes.map(|bytes| match depth {
            Some(depth) => format!("{} × {depth}", gapless_report::Bytes(bytes.into())),
            None => gapless_report::Bytes(bytes.into()).to_string(),
        });
        let occupied = (self.occupied > 0).then(|| format!("{} % occupied", self.occupied));
        let force = force.map(|protocol| protocol.name().to_owned());
        let to_size = matches!(self.source, Source::ToSize | Source::ForeignToSize)
            .then(|| self.source.name().to_owned());
        [force, fragments, occupied, to_size].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Two processes and what they are to measure, in order.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Its name, for `--only` and for rows.
    pub name: &'static str,
    /// What is added to the operation of its rows.
    pub suffix: &'static str,
    /// What is measured.
    pub items: Vec<MessageItem>,
    /// What the engines may use: rank 0's so many blocks, both no copy engine.
    pub budget: Budget,
    /// Whether both are clients of the Multi-Process Service.
    pub mps: bool,
    /// Whether they reach each other by TCP alone.
    pub tcp: bool,
    /// The part of `--time` that each item is measured for.
    pub share: f64,
}

impl Pair {
    /// Processes without restrictions.
    #[must_use]
    pub fn new(name: &'static str, items: Vec<MessageItem>) -> Pair {
        let budget = Budget::default();
        Pair { name, suffix: "", items, budget, mps: false, tcp: false, share: 0.8 }
    }

    /// Whether its engines may use what they like.
    pub(super) fn is_free(&self) -> bool {
        self.budget == Budget::default() && !self.mps
    }
}

/// The places that experiments are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sites {
    /// Both processes on one GPU.
    pub one: Ends,
    /// Each on one of its own; the same as `one` where there is no second.
    pub two: Ends,
}

impl Sites {
    /// Those of `--space`, or of the machine's GPUs.
    #[must_use]
    pub fn of(two: Ends) -> Sites {
        Sites { one: Ends([two.0[0]; 2]), two }
    }

    /// Whether there are two.
    #[must_use]
    pub fn are_two(&self) -> bool {
        self.one != self.two
    }

    /// One GPU and the other process's host memory.
    #[must_use]
    pub fn bus(&self) -> Ends {
        Ends([self.one.0[0], Where::Host])
    }

    /// The configurations of Wu et al., with their names; without a second GPU, two of them.
    #[must_use]
    pub fn configurations(&self) -> Vec<(&'static str, Ends)> {
        let mut all = vec![("1GPU", self.one)];
        if self.are_two() {
            all.push(("2GPU", self.two));
        }
        all.push(("CPU", Ends::HOST));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_what_was_asked_for_and_little_more() {
        let shapes = [
            Shape::Contiguous,
            Shape::V,
            Shape::T,
            Shape::X,
            Shape::FromV,
            Shape::ToV,
            Shape::Flat(Of::V),
            Shape::Flat(Of::T),
            Shape::List,
            Shape::Shuffled,
            Shape::Fft,
        ];
        for shape in shapes {
            for bytes in [1 << 20, 4 << 20] {
                let case = shape.case(Size::Bytes(bytes)).unwrap();
                let payload = case.payload_bytes;
                assert!(
                    payload >= bytes && payload < bytes + bytes / 20,
                    "{} {payload}",
                    case.name
                );
                assert_eq!(case.send.payload_bytes(), case.recv.payload_bytes(), "{}", case.name);
            }
        }
        assert_eq!(Shape::V.case(Size::Edge(96)).unwrap().name, "V n=96");
        assert_eq!(Shape::ToV.case(Size::Edge(96)).unwrap().name, "contiguous-V n=96");
        assert!(Shape::Named("milc").case(Size::Own).unwrap().payload_bytes > 0);
        assert!(Shape::Named("moon").case(Size::Own).is_err());
    }

    #[test]
    fn what_was_asked_is_told() {
        let item = MessageItem::new(Shape::V, Size::Edge(8), Ends::HOST);
        assert_eq!(item.asked(), "");
        let item = item.by(Protocol::Pipeline).in_fragments(1 << 20, 4).beside(25);
        assert_eq!(item.asked(), "pipeline, 1 MiB × 4, 25 % occupied");
    }

    #[test]
    fn sites_have_their_configurations() {
        let two: Ends = "cuda:0,cuda:1".parse().unwrap();
        let sites = Sites::of(two);
        assert_eq!(sites.configurations().len(), 3);
        assert_eq!(sites.bus().to_string(), "cuda:0->host");
        let sites = Sites::of("cuda:2".parse().unwrap());
        assert!(!sites.are_two());
        let names: Vec<_> = sites.configurations().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["1GPU", "CPU"]);
    }
}
