//! Wrappers of transports: which methods are passed on as they are.

/// Methods of a [`Btl`](crate::Btl) that do nothing but call those of another one. A wrapper names them, and writes
/// the others.
///
/// ```
/// use gapless_btl::loopback::{Hub, Loopback};
/// use gapless_btl::{AmTag, Btl, Slot, Token};
///
/// /// Counts what is sent.
/// struct Counter {
///     inner: Loopback,
///     sent: u64,
/// }
///
/// impl Btl for Counter {
///     gapless_btl::delegate!(self => self.inner; limits address connect reserve poll);
///
///     fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
///         self.sent += 1;
///         self.inner.send(slot, tag, done);
///     }
/// }
///
/// let mut end = Counter { inner: Loopback::new(&Hub::new()), sent: 0 };
/// let own = end.address();
/// let me = end.connect(&own)?;
/// let slot = end.reserve(me, 1)?;
/// end.send(slot, AmTag(7), Token::NONE);
/// assert_eq!(end.sent, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Some of an [`Rdma`](crate::Rdma) can be passed on likewise: those that touch no memory.
#[macro_export]
macro_rules! delegate {
    ($self:ident => $to:expr; $($method:ident)*) => {
        $($crate::delegate!(@$method $self, $to);)*
    };
    (@limits $self:ident, $to:expr) => {
        fn limits(&$self) -> &$crate::Limits {
            $to.limits()
        }
    };
    (@address $self:ident, $to:expr) => {
        fn address(&$self) -> $crate::Address {
            $to.address()
        }
    };
    (@connect $self:ident, $to:expr) => {
        fn connect(&mut $self, peer: &$crate::Address) -> Result<$crate::PeerId, $crate::LinkError> {
            $to.connect(peer)
        }
    };
    (@introduce $self:ident, $to:expr) => {
        fn introduce(&mut $self, peer: &$crate::Address) -> Result<$crate::PeerId, $crate::LinkError> {
            $to.introduce(peer)
        }
    };
    (@has_met $self:ident, $to:expr) => {
        fn has_met(&$self, peer: $crate::PeerId) -> bool {
            $to.has_met(peer)
        }
    };
    (@callers $self:ident, $to:expr) => {
        fn callers(&mut $self) -> Option<Vec<u32>> {
            $to.callers()
        }
    };
    (@reserve $self:ident, $to:expr) => {
        fn reserve(&mut $self, to: $crate::PeerId, len: usize) -> Result<$crate::Slot, $crate::ReserveError> {
            $to.reserve(to, len)
        }
    };
    (@send $self:ident, $to:expr) => {
        fn send(&mut $self, slot: $crate::Slot, tag: $crate::AmTag, done: $crate::Token) {
            $to.send(slot, tag, done);
        }
    };
    (@poll $self:ident, $to:expr) => {
        fn poll(&mut $self, only: Option<$crate::PeerId>, sink: &mut dyn $crate::Sink) -> usize {
            $to.poll(only, sink)
        }
    };
    (@send_short $self:ident, $to:expr) => {
        fn send_short(&mut $self, to: $crate::PeerId, tag: $crate::AmTag, message: $crate::Short<'_>) -> bool {
            $to.send_short(to, tag, message)
        }
    };
    (@send_zero_copy $self:ident, $to:expr) => {
        fn send_zero_copy(
            &mut $self,
            to: $crate::PeerId,
            tag: $crate::AmTag,
            message: &$crate::ZeroCopyMessage<'_>,
        ) -> $crate::ZeroCopyResult {
            $to.send_zero_copy(to, tag, message)
        }
    };
    (@has_zero_copy $self:ident, $to:expr) => {
        fn has_zero_copy(&$self, to: $crate::PeerId) -> bool {
            $to.has_zero_copy(to)
        }
    };
    (@is_quiet $self:ident, $to:expr) => {
        fn is_quiet(&$self) -> bool {
            $to.is_quiet()
        }
    };
    (@arm $self:ident, $to:expr) => {
        fn arm(&mut $self) -> Option<std::os::fd::RawFd> {
            $to.arm()
        }
    };
    (@attach $self:ident, $to:expr) => {
        fn attach(
            &mut $self,
            device: &std::sync::Arc<dyn $crate::gapless_mem::Device>,
        ) -> Result<(), $crate::LinkError> {
            $to.attach(device)
        }
    };
    (@detach $self:ident, $to:expr) => {
        fn detach(&mut $self, device: &std::sync::Arc<dyn $crate::gapless_mem::Device>) -> bool {
            $to.detach(device)
        }
    };
    (@retains $self:ident, $to:expr) => {
        fn retains(&$self) -> bool {
            $to.retains()
        }
    };
    (@retain $self:ident, $to:expr) => {
        fn retain(&mut $self, peer: $crate::PeerId) {
            $to.retain(peer);
        }
    };
    (@unacknowledged $self:ident, $to:expr) => {
        fn unacknowledged(&mut $self, peer: $crate::PeerId) -> Vec<$crate::Unacknowledged> {
            $to.unacknowledged(peer)
        }
    };
    (@outstanding $self:ident, $to:expr) => {
        fn outstanding(&$self, peer: $crate::PeerId) -> u64 {
            $to.outstanding(peer)
        }
    };
    (@rdma $self:ident, $to:expr) => {
        fn rdma(&mut $self) -> Option<&mut dyn $crate::Rdma> {
            $to.rdma()
        }
    };
    (@mapped $self:ident, $to:expr) => {
        fn mapped(&mut $self) -> Option<&mut dyn $crate::Mapped> {
            $to.mapped()
        }
    };
    (@rdma_limits $self:ident, $to:expr) => {
        fn rdma_limits(&$self) -> &$crate::RdmaLimits {
            $to.rdma_limits()
        }
    };
    (@reaches $self:ident, $to:expr) => {
        fn reaches(&$self, peer: $crate::PeerId) -> Option<bool> {
            $to.reaches(peer)
        }
    };
    (@takes $self:ident, $to:expr) => {
        fn takes(&mut $self, space: $crate::gapless_mem::Space) -> bool {
            $to.takes(space)
        }
    };
    (@remember $self:ident, $to:expr) => {
        fn remember(&mut $self, memory: &std::sync::Arc<$crate::gapless_mem::Lasting>) {
            $to.remember(memory);
        }
    };
    (@has_atomics $self:ident, $to:expr) => {
        fn has_atomics(&mut $self) -> bool {
            $to.has_atomics()
        }
    };
    (@own $self:ident, $to:expr) => {
        fn own(&mut $self) -> Option<$crate::PeerId> {
            $to.own()
        }
    };
    (@changes $self:ident, $to:expr) => {
        fn changes(&mut $self, peer: $crate::PeerId, key: &$crate::RemoteKey) -> Option<bool> {
            $to.changes(peer, key)
        }
    };
    (@has_single_copy_reads $self:ident, $to:expr) => {
        fn has_single_copy_reads(&mut $self, peer: $crate::PeerId) -> bool {
            $to.has_single_copy_reads(peer)
        }
    };
}
