//! A rendezvous at its sender.

use crate::error::PmlError;
use crate::links::FlatLayout;
use crate::rndv::RndvEnd;
use crate::wire::Rts;
use gapless_bml::{RdmaRail, RemoteKey};
use std::sync::Arc;

/// A rendezvous at its sender.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) rts: Rts,
    /// Where the buffer is registered, if it is.
    pub(crate) registered: Option<(RdmaRail, RemoteKey)>,
    /// The buffer's layout, if the receiver may need one.
    pub(crate) layout: Option<Arc<FlatLayout>>,
    /// The link did not stand yet: the keys are still to be made.
    pub(crate) late: bool,
    /// Whether the receiver has fetched it.
    pub(crate) fetched: bool,
    /// The result of the send: the work that should have made its data has failed, or an engine of ours.
    pub(crate) failed: Option<PmlError>,
    /// The chosen protocol. Without it the offer is valid.
    pub(crate) going: Option<Box<dyn RndvEnd>>,
    /// An engine packs the data, because nobody has answered.
    pub(crate) packing: bool,
    /// Why the data could not be packed, and the message was cancelled.
    pub(crate) unpacked: Option<PmlError>,
    /// It found no staging memory, and was counted.
    pub(crate) without_staging: bool,
    /// It would be eager if nobody answered.
    pub(crate) short: bool,
}
