//! What a long collective goes by, and who has it: a call that is tried borrows it, since to copy it takes as long as a
//! step, and what goes on later keeps it.

use crate::execute::call_buffers::{CallBuffers, Combine};
use crate::execute::sm::buffers::{Described, UserBuffers};
use crate::execute::sm::long_plan::LongPlan;

pub(in crate::execute::sm) trait LongInput {
    /// Whether any [may lengthen](LongPlan::may_lengthen).
    const MAY_LENGTHEN: bool;

    type Buffers: Described;

    fn buffers(&self) -> &UserBuffers<Self::Buffers>;

    fn plan(&self) -> &LongPlan;

    /// How elements are combined, if they are.
    fn combine(&self) -> Option<&Combine>;

    /// As [`LongPlan::lengthen`].
    fn lengthen(&mut self, from: u64);
}

pub(in crate::execute::sm) struct BorrowedInput<'k> {
    pub(in crate::execute::sm) plan: &'k LongPlan,
    pub(in crate::execute::sm) combine: Option<&'k Combine>,
    pub(in crate::execute::sm) buffers: UserBuffers<()>,
}

impl LongInput for BorrowedInput<'_> {
    /// What may is not tried.
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
