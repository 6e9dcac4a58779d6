//! The protocols, by name: what reports print and [`Config::force`](crate::Config::force) takes.

use std::fmt;

/// How a message was, or would be, carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// Header and packed data in one slot, without asking.
    Eager,
    /// RTS, CTS, then packed fragments through slots: two copies.
    Pipeline,
    /// The receiver maps the sender's memory and moves from layout to layout: one copy.
    Mapped,
    /// The sender maps the receiver's memory and moves from layout to layout: one copy.
    MappedPut,
    /// The receiver reads the sender's memory through the transport: one copy.
    SingleCopy,
    /// Sender and receiver are one process: one copy from layout to layout.
    Local,
    /// Device memory: the sender packs straight into staging memory of the receiver's device
    /// (Wu et al. 2016 §4.1), or into the receiver's buffer, if that has no gaps and can be mapped.
    StagedPut,
    /// The same, but the sender packs on its own device and a copy engine moves the fragment over.
    StagedPutCopy,
    /// Device memory: the sender packs into staging memory of its own device, the receiver unpacks
    /// straight out of it.
    StagedGet,
    /// The same, but the receiver has a copy engine fetch the fragment before it unpacks (§5.2.1).
    StagedGetCopy,
    /// Through page-locked host memory that both ends map (§4.2): pack, copy down, copy up, unpack;
    /// a side in host memory packs or unpacks there itself.
    CopyInOut,
    /// The same without the copies: kernels write and read the host memory.
    ZeroCopyInOut,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 12] = [
        Protocol::Eager,
        Protocol::Pipeline,
        Protocol::Mapped,
        Protocol::MappedPut,
        Protocol::SingleCopy,
        Protocol::Local,
        Protocol::StagedPut,
        Protocol::StagedPutCopy,
        Protocol::StagedGet,
        Protocol::StagedGetCopy,
        Protocol::CopyInOut,
        Protocol::ZeroCopyInOut,
    ];

    /// Those that go through staging memory, fragment by fragment.
    pub const STAGED: [Protocol; 6] = [
        Protocol::StagedPut,
        Protocol::StagedPutCopy,
        Protocol::StagedGet,
        Protocol::StagedGetCopy,
        Protocol::CopyInOut,
        Protocol::ZeroCopyInOut,
    ];

    /// The name that reports use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Eager => "eager",
            Protocol::Pipeline => "pipeline",
            Protocol::Mapped => "mapped",
            Protocol::MappedPut => "mapped-put",
            Protocol::SingleCopy => "single-copy",
            Protocol::Local => "local",
            Protocol::StagedPut => "staged-put",
            Protocol::StagedPutCopy => "staged-put-copy",
            Protocol::StagedGet => "staged-get",
            Protocol::StagedGetCopy => "staged-get-copy",
            Protocol::CopyInOut => "copy-in-out",
            Protocol::ZeroCopyInOut => "zero-copy-in-out",
        }
    }

    /// The protocol of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Whether it goes through staging memory, fragment by fragment.
    #[must_use]
    pub fn is_staged(self) -> bool {
        Protocol::STAGED.contains(&self)
    }

    /// Its place in [`Protocol::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_are_found_again() {
        for (at, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol.index(), at);
            assert_eq!(Protocol::of_name(protocol.name()), Some(protocol));
        }
        assert_eq!(Protocol::of_name("staged"), None);
        assert_eq!(Protocol::ALL.into_iter().filter(|way| way.is_staged()).count(), 6);
    }
}
