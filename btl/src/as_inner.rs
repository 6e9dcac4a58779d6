//! For tests: a transport that changes little of another.

/// The methods of a transport that passes all but its polls on to the one that it wraps, its field `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! as_inner {
    () => {
        fn limits(&self) -> &$crate::Limits {
            self.inner.limits()
        }

        fn address(&self) -> $crate::Address {
            self.inner.address()
        }

        fn connect(&mut self, peer: &$crate::Address) -> Result<$crate::PeerId, $crate::LinkError> {
            self.inner.connect(peer)
        }

        fn reserve(
            &mut self,
            to: $crate::PeerId,
            len: usize,
        ) -> Result<$crate::Slot, $crate::ReserveError> {
            self.inner.reserve(to, len)
        }

        fn send(&mut self, slot: $crate::Slot, tag: $crate::AmTag, done: $crate::Token) {
            self.inner.send(slot, tag, done);
        }
    };
}
