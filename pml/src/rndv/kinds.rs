//! The table of kinds: what each protocol does. Its lines are those of `protocol.rs`.

use super::{ProtocolKind, eager, local, mapped, mapped_put, pipeline, single_copy, staged};
use crate::cost::{Model, Situation};
use crate::protocol::{Protocol, each_protocol};
use crate::tuning::Tuning;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $wire:literal, $kind:path;)+) => {
        impl Protocol {
            /// What depends on which one it is.
            pub(crate) fn kind(self) -> &'static ProtocolKind {
                match self {
                    $(Protocol::$name => &$kind,)+
                }
            }
        }
    };
}

each_protocol!(kinds);

impl Protocol {
    /// Predicted one-way time in nanoseconds.
    pub(crate) fn cost(self, situation: &Situation, tuning: &Tuning) -> f64 {
        (self.kind().cost)(&Model::new(situation, tuning), self)
    }
}
