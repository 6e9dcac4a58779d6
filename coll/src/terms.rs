//! What all ranks of a collective must agree on, as far as a schedule depends on it.
use crate::algorithm::{Algorithm, Method};
use crate::call::Call;
use crate::operation::Operation;
use gapless_bml::digest;

/// The arguments of a call that all ranks give alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) operation: Operation,
    /// None too at ranks that give `MPI_PROC_NULL`.
    pub(crate) root: Option<usize>,
    /// As [`Call::bytes`] counts them.
    pub(crate) bytes: Option<u64>,
    /// Packed length of an element.
    pub(crate) unit: u64,
    pub(crate) commutative: bool,
    pub(crate) in_place: bool,
    /// A digest of a list of lengths that all ranks give.
    pub(crate) lens: u64,
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether two ranks agree on the lengths of what one sends the other, and other ranks do not know them.
    pub(crate) by_pairs: bool,
}

impl Terms {
    pub(crate) fn of(call: &Call<'_>, algorithm: &Algorithm) -> Self {
        let of = call.reduction();
        let root = match call {
            Call::Bcast { root, .. }
            | Call::Gather { root, .. }
            | Call::Gatherv { root, .. }
            | Call::Scatter { root, .. }
            | Call::Scatterv { root, .. }
            | Call::Reduce { root, .. } => Some(*root),
            _ => None,
        };
        let lens = match call {
            Call::Allgatherv { lens, .. } | Call::ReduceScatter { lens, .. } => digest(lens),
            _ => 0,
        };
        // Elsewhere ranks that differ in it get on with each other.
        let in_place = matches!(
            call,
            Call::Alltoall { in_place: true, .. } | Call::Alltoallv { in_place: true, .. }
        );
        Self {
            operation: call.operation(),
            root,
            bytes: call.bytes(),
            unit: of.map_or(1, |of| of.unit),
            commutative: of.is_some_and(|of| of.commutative),
            in_place,
            lens,
            algorithm: Some(*algorithm),
            by_pairs: call.bytes().is_none(),
        }
    }

    /// By an algorithm that has no name.
    pub(crate) fn of_own(call: &Call<'_>) -> Self {
        Self { algorithm: None, ..Self::of(call, &Algorithm::new(Method::Linear)) }
    }
}
