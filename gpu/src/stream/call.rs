//! A call, as what its kernel is given: checked, and computed from numbers alone.
//!
//! All ranks come to the same kernel, the same shape and the same [`doing`](peers::doing), if they were given the same
//! operation, count, elements and registered buffers. Addresses differ.

use super::error::StreamError;
use gapless_dtype::Primitive;
use gapless_engine::ReduceOp;
use gapless_kernels::peers::{
    self, Element, GridShape, HEAD_UNUSED, Kernel, PeersArgs, PeersOperation, RANKS_MAX, Window,
};
use gapless_mem::{Region, Space};

/// Memory that a call works on: anywhere on the stream's device, or in registered memory, which peers reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBuffer(pub(super) BufferPlace);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferPlace {
    Own(Region),
    /// Of which communicator, which registration, and where in it.
    Shared {
        owner: u64,
        index: usize,
        offset: u64,
    },
}

impl From<Region> for StreamBuffer {
    fn from(region: Region) -> StreamBuffer {
        StreamBuffer(BufferPlace::Own(region))
    }
}

/// Memory that all ranks have registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    pub(super) owner: u64,
    pub(super) index: usize,
    pub(super) len: u64,
}

impl Registered {
    /// Its bytes: those of the rank that registered the fewest.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What begins so many bytes into it, at every rank.
    #[must_use]
    pub fn at(&self, offset: u64) -> StreamBuffer {
        StreamBuffer(BufferPlace::Shared { owner: self.owner, index: self.index, offset })
    }
}

impl From<Registered> for StreamBuffer {
    fn from(registered: Registered) -> StreamBuffer {
        registered.at(0)
    }
}

/// A registration: where it begins at each rank, as this rank's device sees it.
#[derive(Clone, Debug)]
pub(super) struct Everywhere {
    pub(super) at: [u64; RANKS_MAX],
    /// The shortest one's bytes.
    pub(super) len: u64,
    /// Each one's.
    pub(super) lens: [u64; RANKS_MAX],
}

/// What a communicator knows: as much as a call needs.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    pub(super) owner: u64,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// Where the stream's device has its memory.
    pub(super) space: Space,
    pub(super) windows: [u64; RANKS_MAX],
    pub(super) registered: Vec<Everywhere>,
    /// Blocks of a launch, at most.
    pub(super) blocks: u32,
    pub(super) patience: u64,
    pub(super) abort: u64,
    pub(super) status: u64,
}

/// What is launched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Launch {
    pub(super) kernel: Kernel,
    pub(super) shape: GridShape,
    pub(super) args: PeersArgs,
}

/// A buffer of a call.
struct CallBuffer {
    /// At this rank.
    here: u64,
    /// At every rank, if peers reach it.
    everywhere: Option<[u64; RANKS_MAX]>,
    /// What tells it from others, to all ranks alike; 0 if they do not know it.
    name: [u64; 2],
}

/// An operation that there are kernels for.
fn operation(op: ReduceOp) -> Option<PeersOperation> {
    match op {
        ReduceOp::Sum => Some(PeersOperation::Sum),
        ReduceOp::Prod => Some(PeersOperation::Prod),
        ReduceOp::Max => Some(PeersOperation::Max),
        ReduceOp::Min => Some(PeersOperation::Min),
        _ => None,
    }
}

/// Elements that there are kernels for.
fn element(primitive: Primitive) -> Option<Element> {
    use Primitive as P;
    Some(match primitive {
        P::Float16 => Element::F16,
        P::BFloat16 => Element::Bf16,
        P::Float => Element::F32,
        P::Double => Element::F64,
        P::Int32 | P::Int => Element::I32,
        P::Int64 | P::Long | P::LongLong => Element::I64,
        P::Uint32 | P::Unsigned => Element::U32,
        P::Uint64 | P::UnsignedLong | P::UnsignedLongLong => Element::U64,
        _ => return None,
    })
}

const ALLREDUCE: u64 = 1;
const REDUCE_SCATTER: u64 = 2;
const ALLGATHER: u64 = 3;
const ALLTOALL: u64 = 4;
const BROADCAST: u64 = 5;
const BARRIER: u64 = 6;

impl Ground {
    fn find(
        &self,
        argument: &'static str,
        buffer: StreamBuffer,
        needed: u64,
    ) -> Result<CallBuffer, StreamError> {
        match buffer.0 {
            BufferPlace::Own(region) => {
                if region.space() != self.space {
                    let (space, device) = (region.space(), self.space);
                    return Err(StreamError::WrongSpace { argument, space, device });
                }
                if region.len() < needed {
                    return Err(StreamError::TooShort { argument, needed, len: region.len() });
                }
                Ok(CallBuffer { here: region.start(), everywhere: None, name: [0; 2] })
            }
            BufferPlace::Shared { owner, index, offset } => {
                let known = self.registered.get(index).filter(|_| owner == self.owner);
                let known = known.ok_or(StreamError::Foreign)?;
                let len = known.len.saturating_sub(offset);
                if len < needed {
                    return Err(StreamError::TooShort { argument, needed, len });
                }
                let at = known.at.map(|start| start.wrapping_add(offset));
                let here = at[self.rank as usize];
                Ok(CallBuffer { here, everywhere: Some(at), name: [index as u64 + 1, offset] })
            }
        }
    }

    fn registered(
        found: &CallBuffer,
        operation: &'static str,
        argument: &'static str,
    ) -> Result<[u64; RANKS_MAX], StreamError> {
        found.everywhere.ok_or(StreamError::NotRegistered { operation, argument })
    }

    fn bytes(count: u64, bytes: u64) -> Result<u64, StreamError> {
        count.checked_mul(bytes).ok_or(StreamError::TooLong { count, bytes })
    }

    /// Arguments that are the same for every call.
    pub(super) fn args(&self) -> PeersArgs {
        let window = Window { ranks: self.ranks };
        PeersArgs {
            window: self.windows,
            words: window.words(),
            slot: window.slot(),
            abort: self.abort,
            status: self.status,
            patience: self.patience,
            rank: self.rank,
            ranks: self.ranks,
            which: self.ranks,
            ..PeersArgs::default()
        }
    }

    fn kinds(op: ReduceOp, primitive: Primitive) -> Result<(PeersOperation, Element), StreamError> {
        let both = operation(op).zip(element(primitive));
        both.ok_or(StreamError::Unsupported { op, element: primitive })
    }

    fn aligned(argument: &'static str, width: u32, element: Element) -> Result<(), StreamError> {
        let bytes = element.bytes();
        if u64::from(width) >= bytes {
            Ok(())
        } else {
            Err(StreamError::Misaligned { argument, bytes })
        }
    }

    fn only_ours(&self, address: u64) -> [u64; RANKS_MAX] {
        let mut all = [0; RANKS_MAX];
        all[self.rank as usize] = address;
        all
    }

    fn only_members(&self, address: u64) -> [u64; RANKS_MAX] {
        let mut all = [0; RANKS_MAX];
        all.iter_mut().take(self.ranks as usize).for_each(|member| *member = address);
        all
    }

    fn members<'a>(&self, all: &'a [u64; RANKS_MAX]) -> impl Iterator<Item = u64> + 'a {
        all.iter().copied().take(self.ranks as usize)
    }

    /// What an all-reduce launches; nothing, if there are no elements.
    pub(super) fn allreduce(
        &self,
        (send, recv): (StreamBuffer, StreamBuffer),
        count: u64,
        (op, primitive): (ReduceOp, Primitive),
    ) -> Result<Option<Launch>, StreamError> {
        let (operation, element) = Self::kinds(op, primitive)?;
        let bytes = Self::bytes(count, element.bytes())?;
        let (send, recv) = (self.find("send", send, bytes)?, self.find("recv", recv, bytes)?);
        for (argument, found) in [("send", &send), ("recv", &recv)] {
            Self::aligned(argument, peers::width([found.here]), element)?;
        }
        if count == 0 {
            return Ok(None);
        }
        let mut args = PeersArgs { elements: count, split: 1, ..self.args() };
        let kinds = [ALLREDUCE, count, operation as u64, element as u64];
        args.src = self.only_ours(send.here);
        args.dst = self.only_ours(recv.here);
        args.width = peers::width([send.here, recv.here]);
        // Buffers of their own make no difference up to here, so ranks may differ in that.
        if bytes <= peers::flagged_max(self.ranks) {
            args.doing = peers::doing(&kinds);
            let shape = peers::flagged(bytes, self.blocks);
            return Ok(Some(Launch { kernel: Kernel::Flagged(operation, element), shape, args }));
        }
        let kernel = Kernel::Direct(operation, element);
        if let (Some(src), Some(dst)) = (send.everywhere, recv.everywhere) {
            let [[a, b], [c, d]] = [send.name, recv.name];
            args.doing = peers::doing(&[kinds.as_slice(), &[a, b, c, d]].concat());
            args.width = peers::width(self.members(&src).chain(self.members(&dst)));
            (args.src, args.dst) = (src, dst);
            let shape = peers::direct(bytes / u64::from(self.ranks), self.blocks);
            return Ok(Some(Launch { kernel, shape, args }));
        }
        let (shape, piece) = peers::staged(count, element, self.ranks, self.blocks);
        args.doing = peers::doing(&[kinds.as_slice(), &[piece]].concat());
        args.stage = Window { ranks: self.ranks }.stage();
        args.piece = piece;
        Ok(Some(Launch { kernel, shape, args }))
    }

    /// What a reduce-scatter of blocks of `count` elements launches.
    pub(super) fn reduce_scatter(
        &self,
        (send, recv): (StreamBuffer, StreamBuffer),
        count: u64,
        (op, primitive): (ReduceOp, Primitive),
    ) -> Result<Option<Launch>, StreamError> {
        let (operation, element) = Self::kinds(op, primitive)?;
        let block = Self::bytes(count, element.bytes())?;
        let all = Self::bytes(block, u64::from(self.ranks))?;
        let (send, recv) = (self.find("send", send, all)?, self.find("recv", recv, block)?);
        let src = Self::registered(&send, "reduce-scatter", "send")?;
        let part = block * u64::from(self.rank);
        let src = src.map(|start| start.wrapping_add(part));
        for (argument, address) in [("send", send.here), ("recv", recv.here)] {
            Self::aligned(argument, peers::width([address]), element)?;
        }
        if count == 0 {
            return Ok(None);
        }
        let mut args = PeersArgs { elements: count, split: 0, ..self.args() };
        let [a, b] = send.name;
        args.doing = peers::doing(&[REDUCE_SCATTER, count, operation as u64, element as u64, a, b]);
        args.width = peers::width(self.members(&src).chain([recv.here]));
        args.src = src;
        args.dst = self.only_ours(recv.here);
        let shape = peers::direct(block, self.blocks);
        Ok(Some(Launch { kernel: Kernel::Direct(operation, element), shape, args }))
    }

    /// What a launch of moves does: a block to each rank, from and to where the two functions say.
    fn moves(
        &self,
        doing: u32,
        bytes: u64,
        place: impl Fn(u32) -> Option<(u64, u64)>,
    ) -> Option<Launch> {
        let mut args = PeersArgs { elements: bytes, doing, ..self.args() };
        let mut addresses = Vec::new();
        for rank in 0..self.ranks {
            if let Some((src, dst)) = place(rank) {
                (args.src[rank as usize], args.dst[rank as usize]) = (src, dst);
                addresses.extend([src, dst]);
            }
        }
        args.width = peers::width(addresses);
        let shape = peers::moved(bytes, self.ranks, self.blocks);
        (bytes > 0).then_some(Launch { kernel: Kernel::Move, shape, args })
    }

    /// A block from each rank to each rank, `bytes` long: `src` is this rank's for another, `dst` where another's goes,
    /// both as bytes from the begin of their buffer. Few bytes go through words with flags.
    fn every(
        &self,
        doing: u32,
        bytes: u64,
        (send, recv): (&CallBuffer, [u64; RANKS_MAX]),
        src: impl Fn(u32) -> u64,
    ) -> Option<Launch> {
        let source = |rank| send.here.wrapping_add(src(rank));
        if bytes > peers::words_max(self.ranks) {
            let block = bytes * u64::from(self.rank);
            let place = |rank: u32| Some((source(rank), recv[rank as usize].wrapping_add(block)));
            return self.moves(doing, bytes, place);
        }
        let here = recv[self.rank as usize];
        let place = |rank: u32| Some((source(rank), here.wrapping_add(bytes * u64::from(rank))));
        let shape = peers::flagged(bytes, self.blocks);
        Some(Launch { kernel: Kernel::Words, shape, ..self.moves(doing, bytes, place)? })
    }

    /// What an all-gather of blocks of `bytes` bytes launches.
    pub(super) fn allgather(
        &self,
        (send, recv): (StreamBuffer, StreamBuffer),
        bytes: u64,
    ) -> Result<Option<Launch>, StreamError> {
        let all = Self::bytes(bytes, u64::from(self.ranks))?;
        let (send, recv) = (self.find("send", send, bytes)?, self.find("recv", recv, all)?);
        let dst = Self::registered(&recv, "all-gather", "recv")?;
        let [a, b] = recv.name;
        let doing = peers::doing(&[ALLGATHER, bytes, a, b]);
        Ok(self.every(doing, bytes, (&send, dst), |_| 0))
    }

    /// What an all-to-all of blocks of `bytes` bytes launches.
    pub(super) fn alltoall(
        &self,
        (send, recv): (StreamBuffer, StreamBuffer),
        bytes: u64,
    ) -> Result<Option<Launch>, StreamError> {
        let all = Self::bytes(bytes, u64::from(self.ranks))?;
        let (send, recv) = (self.find("send", send, all)?, self.find("recv", recv, all)?);
        let dst = Self::registered(&recv, "all-to-all", "recv")?;
        let [a, b] = recv.name;
        let doing = peers::doing(&[ALLTOALL, bytes, a, b]);
        Ok(self.every(doing, bytes, (&send, dst), |rank| bytes * u64::from(rank)))
    }

    /// What a barrier launches: words that nobody needs, out of the window's head and into it.
    pub(super) fn barrier(&self) -> Launch {
        const BYTES: u64 = 8;
        let word = self.windows[self.rank as usize] + HEAD_UNUSED;
        let all = self.only_members(word);
        let args = PeersArgs {
            src: all,
            dst: all,
            elements: BYTES,
            width: 8,
            doing: peers::doing(&[BARRIER]),
            ..self.args()
        };
        Launch { kernel: Kernel::Words, shape: peers::flagged(BYTES, self.blocks), args }
    }

    /// What a broadcast of `bytes` bytes launches.
    pub(super) fn broadcast(
        &self,
        buffer: StreamBuffer,
        bytes: u64,
        root: u32,
    ) -> Result<Option<Launch>, StreamError> {
        if root >= self.ranks {
            return Err(StreamError::NoSuchRank { rank: root, size: self.ranks });
        }
        let found = self.find("buffer", buffer, bytes)?;
        let everywhere = Self::registered(&found, "broadcast", "buffer")?;
        let [a, b] = found.name;
        let doing = peers::doing(&[BROADCAST, bytes, u64::from(root), a, b]);
        if bytes <= peers::words_max(self.ranks) {
            let shape = peers::flagged(bytes, self.blocks);
            let Some(mut launch) = self.moves(doing, bytes, |_| Some((found.here, found.here)))
            else {
                return Ok(None);
            };
            launch.args.which = root;
            return Ok(Some(Launch { kernel: Kernel::Words, shape, ..launch }));
        }
        let place = |rank: u32| {
            let writes = self.rank == root && rank != root;
            writes.then(|| (found.here, everywhere[rank as usize]))
        };
        Ok(self.moves(doing, bytes, place))
    }
}

#[cfg(test)]
mod tests;
