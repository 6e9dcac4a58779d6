//! The input of a long collective: its plan, its buffers, and how elements are combined. An attempt borrows it, since
//! to copy it takes as long as a step; a collective that goes on later owns it.

use crate::execute::call_buffers::{CallBuffers, Combine};
use crate::execute::sm::buffers::{Described, UserBuffers};
use crate::execute::sm::long_plan::LongPlan;

/// The input of a long collective.
pub(in crate::execute::sm) trait LongInput {
    /// Whether any plan with this kind of input [may lengthen](LongPlan::may_lengthen).
    const MAY_LENGTHEN: bool;

    type Buffers: Described;

    fn buffers(&self) -> &UserBuffers<Self::Buffers>;

    fn plan(&self) -> &LongPlan;

    /// How elements are combined, if they are.
    fn combine(&self) -> Option<&Combine>;

    /// As [`LongPlan::lengthen`].
    fn lengthen(&mut self, from: u64);
}

/// The input of an attempt.
pub(in crate::execute::sm) struct BorrowedInput<'k> {
    pub(in crate::execute::sm) plan: &'k LongPlan,
    pub(in crate::execute::sm) combine: Option<&'k Combine>,
    pub(in crate::execute::sm) buffers: UserBuffers<()>,
}

impl LongInput for BorrowedInput<'_> {
    /// A plan that may lengthen is not attempted.
    const MAY_LENGTHEN: bool = false;
    type Buffers = ();

    fn buffers(&self) -> &UserBuffers<()> {
        &self.buffers
    }

    fn plan(&self) -> &LongPlan {
        self.plan
    }

    fn combine(&self) -> Option<&Combine> {
        self.combine
    }

    fn lengthen(&mut self, _: u64) {}
}

/// The input of a collective whose memory is granted until it ends.
#[derive(Debug)]
pub(in crate::execute::sm) struct OwnedInput {
    pub(in crate::execute::sm) plan: LongPlan,
    pub(in crate::execute::sm) combine: Option<Combine>,
    pub(in crate::execute::sm) buffers: UserBuffers,
}

impl LongInput for OwnedInput {
    const MAY_LENGTHEN: bool = true;
    type Buffers = CallBuffers;

    fn buffers(&self) -> &UserBuffers<CallBuffers> {
        &self.buffers
    }

    fn plan(&self) -> &LongPlan {
        &self.plan
    }

    fn combine(&self) -> Option<&Combine> {
        self.combine.as_ref()
    }

    fn lengthen(&mut self, from: u64) {
        self.plan.lengthen(from);
    }
}
