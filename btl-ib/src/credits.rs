//! How many messages may be under way: pure counting, modulo 2³².

/// Room at the peer for our messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// Messages sent since the link began.
    sent: u32,
    /// Messages that may be sent in all.
    limit: u32,
    /// What the peer holds at most.
    window: u32,
}

impl Outgoing {
    pub(crate) fn new(window: u32) -> Outgoing {
        Outgoing { sent: 0, limit: window, window }
    }

    /// How many more may be sent.
    pub(crate) fn room(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    pub(crate) fn sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// Takes a grant.
    ///
    /// # Errors
    /// It cannot be: it gives room back, or more than the peer has.
    pub(crate) fn granted(&mut self, limit: u32) -> Result<(), String> {
        let (more, under_way) = (limit.wrapping_sub(self.limit), limit.wrapping_sub(self.sent));
        if more > self.window || under_way > self.window {
            let Outgoing { sent, limit: before, window } = *self;
            return Err(format!(
                "a grant of {limit} after {before}, {sent} messages sent and {window} buffers"
            ));
        }
        self.limit = limit;
        Ok(())
    }
}

/// Our room for the peer's messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// Messages that have arrived.
    came: u32,
    /// What the peer may send in all.
    limit: u32,
    /// What of that it was told.
    told: u32,
    window: u32,
}

impl Incoming {
    pub(crate) fn new(window: u32) -> Incoming {
        Incoming { came: 0, limit: window, told: window, window }
    }

    /// A message has arrived.
    ///
    /// # Errors
    /// There was no room for it.
    pub(crate) fn came(&mut self) -> Result<(), String> {
        if self.came == self.told {
            return Err(format!("message {} of at most {}", self.came.wrapping_add(1), self.told));
        }
        self.came = self.came.wrapping_add(1);
        Ok(())
    }

    /// A buffer is free again.
    pub(crate) fn freed(&mut self) {
        self.limit = self.limit.wrapping_add(1);
    }

    /// How many messages have arrived whose buffers are not free again.
    pub(crate) fn held(&self) -> u32 {
        self.came.wrapping_sub(self.limit.wrapping_sub(self.window))
    }

    /// What to tell the peer with the message that leaves now.
    pub(crate) fn tell(&mut self) -> u32 {
        self.told = self.limit;
        self.limit
    }

    /// Whether so much room was not told that a message of its own is due.
    pub(crate) fn is_due(&self) -> bool {
        self.limit.wrapping_sub(self.told) >= (self.window / 2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_goes_round_and_past_the_end_of_numbers() {
        let (mut out, mut back) = (Outgoing::new(4), Incoming::new(4));
        for numbers in [&mut out.sent, &mut out.limit] {
            *numbers = numbers.wrapping_sub(6);
        }
        for numbers in [&mut back.came, &mut back.limit, &mut back.told] {
            *numbers = numbers.wrapping_sub(6);
        }
        for _ in 0..20 {
            while out.room() > 0 {
                out.sent();
                back.came().unwrap();
            }
            assert!(back.came().is_err(), "no room was left");
            assert_eq!(back.held(), 4);
            back.freed();
            assert!(!back.is_due());
            back.freed();
            assert!(back.is_due());
            out.granted(back.tell()).unwrap();
            assert!(!back.is_due());
            assert_eq!(out.room(), 2);
        }
    }

    #[test]
    fn grants_that_cannot_be_are_refused() {
        let mut out = Outgoing::new(4);
        out.sent();
        out.granted(5).unwrap();
        for wrong in [4, 6, 0, u32::MAX, 1 << 31] {
            assert!(out.granted(wrong).is_err(), "{wrong}");
        }
        out.granted(5).expect("the same once more");
    }
}
