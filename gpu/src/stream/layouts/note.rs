//! What a rank tells a peer of a plan: where its blocks for the peer lie, and those that come from there. Any bytes can be
//! read.
//!
//! ```text
//!  0 1 and the way that is forced:4 | 4 blocks sent:4 | 8 what is called:8 | 16 registrations of both buffers:4 4
//!  then each block, first those sent: lane:4 | unused:4 | displacement 0 in the registration:8 | count:8 | L:8 | layout:L
//! ```

use super::work::BlockEnd;
use gapless_dtype::Layout;
use gapless_dtype_cuda::Described;

/// What ranks must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The operation.
    pub(super) called: u64,
    /// Which registrations are sent from and received into.
    pub(super) registered: [u32; 2],
    /// [`StreamWay`](super::StreamWay) as a number; 0: none is forced.
    pub(super) way: u32,
}

/// What one rank tells another.
#[derive(Clone, Debug)]
pub(super) struct BlockNote {
    pub(super) terms: Terms,
    /// Its blocks for the other.
    pub(super) sends: Vec<BlockEnd>,
    /// Its blocks from the other.
    pub(super) recvs: Vec<BlockEnd>,
}

const HEAD: usize = 24;

impl BlockNote {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Terms { called, registered, way } = self.terms;
        let sends = u32::try_from(self.sends.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEAD);
        bytes.extend_from_slice(&(way + 1).to_le_bytes());
        bytes.extend_from_slice(&sends.to_le_bytes());
        bytes.extend_from_slice(&called.to_le_bytes());
        registered.iter().for_each(|index| bytes.extend_from_slice(&index.to_le_bytes()));
        for end in self.sends.iter().chain(&self.recvs) {
            let numbers = [u64::from(end.lane), end.at, end.count, end.flat.len() as u64];
            numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
            bytes.extend_from_slice(&end.flat);
        }
        bytes
    }

    /// `None` if they are no note.
    pub(super) fn decode(bytes: &[u8]) -> Option<BlockNote> {
        let mut rest = bytes;
        let way = u32::from_le_bytes(take(&mut rest)?).checked_sub(1)?;
        let sent = u32::from_le_bytes(take(&mut rest)?);
        let called = u64::from_le_bytes(take(&mut rest)?);
        let registered = [take(&mut rest)?, take(&mut rest)?].map(u32::from_le_bytes);
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let mut number = || take(&mut rest).map(u64::from_le_bytes);
            let (lane, at, count, len) = (number()?, number()?, number()?, number()?);
            let (flat, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            rest = after;
            let into = if sends.len() < sent as usize { &mut sends } else { &mut recvs };
            into.push(BlockEnd::of(u32::try_from(lane).ok()?, at, count, flat)?);
        }
        let terms = Terms { called, registered, way };
        (sends.len() == sent as usize).then_some(BlockNote { terms, sends, recvs })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*number)
}

impl BlockEnd {
    /// Both ends find a layout's bytes in what was told of it, so that they come to the same.
    pub(super) fn of(lane: u32, at: u64, count: u64, flat: &[u8]) -> Option<BlockEnd> {
        let layout = Layout::unflatten(flat).ok()?;
        layout.size().checked_mul(count)?;
        let described = Described::of(&layout, count);
        Some(BlockEnd { lane, at, count, layout, described, flat: flat.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    #[test]
    fn notes_come_back_and_any_bytes_can_be_read() {
        let rows = Datatype::vector(3, 1, 4, &Primitive::Double.into()).unwrap().commit().unwrap();
        let end = |lane| BlockEnd::of(lane, 1 << 33, 5, &rows.flatten()).unwrap();
        let terms = Terms { called: 7 << 40, registered: [1, 9], way: 3 };
        let note = BlockNote { terms, sends: vec![end(0), end(4)], recvs: vec![end(2)] };
        let bytes = note.encode();
        let back = BlockNote::decode(&bytes).unwrap();
        assert_eq!((back.terms, back.sends.len(), back.recvs.len()), (terms, 2, 1));
        let told = |end: &BlockEnd| (end.lane, end.at, end.count, end.layout.clone());
        assert_eq!(told(&back.sends[1]), (4, 1 << 33, 5, rows.clone()));
        assert_eq!(told(&back.recvs[0]), told(&note.recvs[0]));
        assert!(BlockNote::decode(&[]).is_none());
        for cut in 0..bytes.len() {
            let _ = BlockNote::decode(&bytes[..cut]);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let _ = BlockNote::decode(&bytes);
            }
        }
    }
}
