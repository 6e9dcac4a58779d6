//! The protocols: the table of their kinds, and their names.

use super::{Kind, local, mapped, mapped_put, pipeline, single_copy, staged};
use crate::eager;
use std::fmt;

/// Makes the enumeration of all protocols, and finds the kind of each.
macro_rules! protocols {
    ($($(#[doc = $doc:literal])+ $name:ident = $kind:expr,)+) => {
        /// How a message was, or would be, carried.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Protocol {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Protocol {
            /// All of them.
            pub const ALL: [Protocol; [$(Protocol::$name),+].len()] = [$(Protocol::$name),+];

            /// What depends on which one it is.
            pub(crate) fn kind(self) -> &'static Kind {
                match self {
                    $(Protocol::$name => &$kind,)+
                }
            }
        }
    };
}

protocols! {
    /// Header and packed data in one slot, without a rendezvous.
    Eager = eager::KIND,
    /// RTS, CTS, then packed fragments through slots: two copies.
    Pipeline = pipeline::KIND,
    /// The receiver maps the sender's memory and moves from layout to layout: one copy.
    Mapped = mapped::KIND,
    /// The sender maps the receiver's memory and moves from layout to layout: one copy.
    MappedPut = mapped_put::KIND,
    /// The receiver reads the sender's memory through the transport: one copy.
    SingleCopy = single_copy::KIND,
    /// Sender and receiver are one process: one copy from layout to layout.
    Local = local::KIND,
    /// Device memory: the sender packs straight into staging memory of the receiver's device
    /// (Wu et al. 2016 §4.1), or into the receiver's buffer, if that has no gaps and can be mapped.
    StagedPut = staged::PUT,
    /// The same, but the sender packs on its own device and a copy engine moves the fragment over.
    StagedPutCopy = staged::PUT_COPY,
    /// Device memory: the sender packs into staging memory of its own device, the receiver unpacks
    /// straight out of it.
    StagedGet = staged::GET,
    /// The same, but the receiver's copy engine fetches the fragment before it is unpacked (§5.2.1).
    StagedGetCopy = staged::GET_COPY,
    /// Through page-locked host memory that both ends map (§4.2): pack, copy down, copy up, unpack;
    /// a side in host memory packs or unpacks there itself.
    CopyInOut = staged::COPY_IN_OUT,
    /// The same without the copies: kernels write and read the host memory.
    ZeroCopyInOut = staged::ZERO_COPY_IN_OUT,
    /// Device memory, between hosts: the sender packs into staging memory of its own device, the receiver's adapter reads
    /// that (GPUDirect) into the receiver's buffer, or into staging memory of its device, where it is unpacked.
    StagedRead = staged::READ,
}

impl Protocol {
    /// The protocols through staging memory that the other end maps, fragment by fragment.
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
        self.kind().name
    }

    /// The protocol of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Whether it uses staging memory that the other end maps, fragment by fragment.
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
    use std::collections::BTreeSet;

    #[test]
    fn names_and_places_are_found_again() {
        for (at, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol.index(), at);
            assert_eq!(Protocol::of_name(protocol.name()), Some(protocol));
        }
        assert_eq!(Protocol::of_name("staged"), None);
        assert_eq!(Protocol::ALL.into_iter().filter(|protocol| protocol.is_staged()).count(), 6);
    }

    #[test]
    fn numbers_on_the_wire_are_those_of_the_protocol_document() {
        let numbers = Protocol::ALL.map(|protocol| (protocol.kind().wire, protocol.name()));
        let documented = [
            (1, "eager"),
            (2, "pipeline"),
            (3, "mapped"),
            (12, "mapped-put"),
            (4, "single-copy"),
            (5, "local"),
            (6, "staged-put"),
            (7, "staged-put-copy"),
            (8, "staged-get"),
            (9, "staged-get-copy"),
            (10, "copy-in-out"),
            (11, "zero-copy-in-out"),
            (13, "staged-read"),
        ];
        assert_eq!(numbers, documented);
        assert_eq!(BTreeSet::from(numbers.map(|(wire, _)| wire)).len(), Protocol::ALL.len());
    }
}
