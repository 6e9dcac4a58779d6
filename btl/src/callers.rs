//! Who has called and was not introduced: what a transport that accepts calls from anybody of the job has for
//! [`Btl::callers`](crate::Btl::callers).

/// Numbers of peers that have called, and whose addresses this end was not given. There are as many as there is room for,
/// because it may be that nobody asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers {
    numbers: Vec<u32>,
    /// How often they were asked for.
    asked: u32,
}

impl Callers {
    /// One has called. It is forgotten if there are `room` already that nobody has asked for.
    pub fn note(&mut self, number: u32, room: usize) {
        if self.numbers.len() < room {
            self.numbers.push(number);
        }
    }

    /// Those since this was last called, in their order.
    pub fn take(&mut self) -> Vec<u32> {
        self.asked = self.asked.saturating_add(1);
        std::mem::take(&mut self.numbers)
    }

    /// Whether there are some, and somebody asks again and again, in order to introduce them. If there is no room for more,
    /// new callers should wait meanwhile: they would take the places of these.
    #[must_use]
    pub fn are_awaited(&self) -> bool {
        self.asked > 1 && !self.numbers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_kept_as_there_is_room_for() {
        let mut callers = Callers::default();
        (0..5).for_each(|number| callers.note(number, 3));
        assert_eq!(callers.take(), [0, 1, 2]);
        assert_eq!(callers.take(), []);
        callers.note(7, 0);
        assert_eq!(callers.take(), []);
    }

    #[test]
    fn they_are_awaited_if_somebody_asks_again_and_again() {
        let mut callers = Callers::default();
        callers.note(4, 9);
        assert!(!callers.are_awaited(), "nobody asks");
        assert_eq!(callers.take(), [4]);
        callers.note(5, 9);
        assert!(!callers.are_awaited(), "somebody has asked once");
        assert_eq!(callers.take(), [5]);
        assert!(!callers.are_awaited(), "there is none");
        callers.note(6, 9);
        assert!(callers.are_awaited());
    }
}
