//! The BTL management layer: the only poller of transports.
