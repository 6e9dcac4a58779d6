//! What was found out about the destination of a large copy that is unpacked part by part, for the parts behind. Asking
//! every 64 KiB would cost a tenth of the time where the answer is that the destination is in cache.
//!
//! One answer a thread: parts of several copies in turn are asked more often. The answer decides over kinds of stores
//! and nothing else. Units: bytes.

use std::cell::Cell;

use super::STREAM_MIN;

/// Whether parts of the copy to `origin` are not in cache, from packed byte `from` on for [`STREAM_MIN`] bytes.
#[derive(Clone, Copy)]
struct Answer {
    origin: usize,
    from: u64,
    cold: bool,
}

thread_local! {
    static LAST: Cell<Option<Answer>> = const { Cell::new(None) };
}

/// What is known of the part at packed byte `position` of the copy to `origin`.
pub(crate) fn past_trial(origin: *const u8, position: u64) -> Option<bool> {
    let last = LAST.get()?;
    let behind = position.checked_sub(last.from)?;
    (last.origin == origin.addr() && behind < STREAM_MIN).then_some(last.cold)
}

/// Keeps what was found out of the part at `from`.
pub(crate) fn keep(origin: *const u8, from: u64, cold: bool) {
    LAST.set(Some(Answer { origin: origin.addr(), from, cold }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_the_parts_behind() {
        let place = std::ptr::without_provenance::<u8>;
        assert_eq!(past_trial(place(64), 0), None);
        for cold in [false, true] {
            keep(place(64), 1000, cold);
            assert_eq!(past_trial(place(64), 1000), Some(cold));
            assert_eq!(past_trial(place(64), 999 + STREAM_MIN), Some(cold));
            assert_eq!(past_trial(place(64), 1000 + STREAM_MIN), None, "too far");
            assert_eq!(past_trial(place(64), 999), None, "before");
            assert_eq!(past_trial(place(65), 1000), None, "another");
        }
    }
}
