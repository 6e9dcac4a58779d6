//! The protocols: their names, and sets of them. What each does is its `ProtocolKind` (`rndv.rs`).

use std::fmt;

/// The list of all protocols, a line each: its name here, what reports call it, its number on the wire, which never
/// changes, and its `ProtocolKind` in `rndv/`. It gives the lines to another macro: to one below, which needs the names
/// alone, and to one in `rndv/kinds.rs`, which needs the kinds.
macro_rules! each_protocol {
    ($give:ident) => {
        $give! {
            /// Header and packed data in one slot, without a rendezvous.
            Eager = "eager", 1, eager::KIND;
            /// RTS, CTS, then packed fragments through slots: two copies.
            Pipeline = "pipeline", 2, pipeline::KIND;
            /// The receiver maps the sender's memory and moves from layout to layout: one copy.
            Mapped = "mapped", 3, mapped::KIND;
            /// The sender maps the receiver's memory and moves from layout to layout: one copy.
            MappedPut = "mapped-put", 12, mapped_put::KIND;
            /// The receiver reads the sender's memory through the transport: one copy.
            SingleCopy = "single-copy", 4, single_copy::KIND;
            /// Sender and receiver are one process: one copy from layout to layout.
            Local = "local", 5, local::KIND;
            /// Device memory: the sender packs straight into staging memory of the receiver's device
            /// (Wu et al. 2016 §4.1), or into the receiver's buffer, if that has no gaps and can be mapped.
            StagedPut = "staged-put", 6, staged::PUT;
            /// The same, but the sender packs on its own device and a copy engine moves the fragment over.
            StagedPutCopy = "staged-put-copy", 7, staged::BETWEEN_DEVICES;
            /// Device memory: the sender packs into staging memory of its own device, the receiver unpacks
            /// straight out of it.
            StagedGet = "staged-get", 8, staged::BETWEEN_DEVICES;
            /// The same, but the receiver's copy engine fetches the fragment before it is unpacked (§5.2.1).
            StagedGetCopy = "staged-get-copy", 9, staged::BETWEEN_DEVICES;
            /// Through page-locked host memory that both ends map (§4.2): pack, copy down, copy up, unpack;
            /// a side in host memory packs or unpacks there itself.
            CopyInOut = "copy-in-out", 10, staged::THROUGH_HOST;
            /// The same without the copies: kernels write and read the host memory.
            ZeroCopyInOut = "zero-copy-in-out", 11, staged::THROUGH_HOST;
            /// Device memory, between hosts: the sender packs into staging memory of its own device, the receiver's
            /// adapter reads that (GPUDirect) into the receiver's buffer, or into staging memory of its device, where it
            /// is unpacked.
            StagedRead = "staged-read", 13, staged::READ;
        }
    };
}
pub(crate) use each_protocol;

macro_rules! names {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $wire:literal, $kind:path;)+) => {
        /// How a message was, or would be, carried.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Protocol {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Protocol {
            /// All of them.
            pub const ALL: [Protocol; [$(Protocol::$name),+].len()] = [$(Protocol::$name),+];

            /// The name that reports use, and that [`Config::force`](crate::Config::force) takes.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Protocol::$name => $text,)+
                }
            }

            /// Its number on the wire, in FIN and OPEN.
            pub(crate) fn wire(self) -> u8 {
                match self {
                    $(Protocol::$name => $wire,)+
                }
            }
        }
    };
}

each_protocol!(names);

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

/// A set of protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Protocols(u32);

const _: () = assert!(Protocol::ALL.len() <= u32::BITS as usize);

impl Protocols {
    /// All of them.
    pub(crate) const ALL: Protocols = Protocols(u32::MAX);

    /// These alone.
    pub(crate) fn of(protocols: &[Protocol]) -> Protocols {
        protocols.iter().fold(Protocols(0), |set, protocol| set.with(*protocol))
    }

    /// With one.
    #[must_use]
    pub(crate) fn with(self, protocol: Protocol) -> Protocols {
        Protocols(self.0 | 1 << protocol.index())
    }

    /// Without one.
    #[must_use]
    pub(crate) fn without(self, protocol: Protocol) -> Protocols {
        Protocols(self.0 & !(1 << protocol.index()))
    }

    /// Whether it has one.
    pub(crate) fn has(self, protocol: Protocol) -> bool {
        self.0 >> protocol.index() & 1 != 0
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
        let numbers = Protocol::ALL.map(|protocol| (protocol.wire(), protocol.name()));
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

    #[test]
    fn a_set_is_without_what_was_taken_out() {
        let set = Protocols::ALL.without(Protocol::MappedPut);
        for protocol in Protocol::ALL {
            assert_eq!(set.has(protocol), protocol != Protocol::MappedPut);
        }
    }
}
