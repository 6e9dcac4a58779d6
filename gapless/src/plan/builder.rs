//! How a plan is described, message by message.

use super::buffer::ArrayShape;
use super::{Plan, PlanBuffer, Planned, PlannedMessage, check_rank, check_served, check_tag};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::parts::UsedBytes;
use crate::view::{pages_in, typed_in};
use gapless_dtype::{ElementType, Layout, Pages};
use gapless_engine::Typed;
use gapless_mem::Region;
use gapless_pml::{PmlError, Source, TagSel};
use std::fmt;

/// The messages of a [`Plan`] so far. Made by [`Communicator::plan`].
///
/// Origins and layouts are as for [`View::typed`](crate::View::typed): displacement 0 of `layout` is `origin` elements
/// into the array. In a [`DeviceBuf`](crate::DeviceBuf), a [`SharedBuf`](crate::SharedBuf) and a region the elements
/// are bytes. Adding a message takes time in proportion to its blocks and those of the messages before it.
#[must_use = "`build` makes a plan of it"]
pub struct PlanBuilder {
    comm: Communicator,
    shape: ArrayShape,
    region: Region,
    taken: UsedBytes,
    messages: Vec<Planned>,
}

impl Communicator {
    /// Begins a [`Plan`] for exchanges of parts of `array`, or of others of its element type, length and memory. It is
    /// not borrowed.
    pub fn plan<B: PlanBuffer + ?Sized>(&self, array: &B) -> PlanBuilder {
        let (region, element) = array.place();
        self.plan_in(region, element)
    }

    /// As [`plan`](Communicator::plan), for memory that the borrow checker does not know, such as what `cudaMalloc`
    /// gave. Origins are in bytes. See [`Plan::exchange_region`].
    pub fn plan_region(&self, region: Region) -> PlanBuilder {
        self.plan_in(region, ElementType::of::<u8>())
    }

    fn plan_in(&self, region: Region, element: ElementType) -> PlanBuilder {
        let shape = ArrayShape::new(region, element);
        let (taken, messages) = (UsedBytes::default(), Vec::new());
        PlanBuilder { comm: self.clone(), shape, region, taken, messages }
    }
}

impl PlanBuilder {
    /// Adds a send of `count` instances of `layout`, in standard mode.
    ///
    /// # Errors
    /// The instances reach outside the array or do not fit its elements ([`Error::Buffer`], [`Error::Fit`]); a part of
    /// them is received into by a message before ([`Error::InUse`]); no such rank; a negative tag.
    pub fn send(
        self,
        origin: u64,
        layout: &Layout,
        count: u64,
        dest: u32,
        tag: i32,
    ) -> Result<PlanBuilder, Error> {
        let typed = typed_in(self.region, self.shape.element(), origin, layout, count)?;
        self.add_send(typed, dest, tag)
    }

    /// Adds a send of pages; displacement 0 is `origin` elements into the array.
    ///
    /// # Errors
    /// As [`send`](PlanBuilder::send), and as [`View::pages`](crate::View::pages).
    pub fn send_pages(
        self,
        origin: u64,
        pages: &Pages,
        dest: u32,
        tag: i32,
    ) -> Result<PlanBuilder, Error> {
        let typed = pages_in(self.region, self.shape.element(), origin, pages)?;
        self.add_send(typed, dest, tag)
    }

    fn add_send(mut self, typed: Typed, dest: u32, tag: i32) -> Result<PlanBuilder, Error> {
        self.check_rank(dest, "the destination of a send")?;
        check_tag(tag)?;
        self.taken.read(&typed)?;
        self.messages.push(Planned { typed, what: PlannedMessage::Send { dest, tag } });
        Ok(self)
    }

    /// Adds a receive of at most `count` instances of `layout`. Of receives that take the same messages, each takes the
    /// next one, in their order here.
    ///
    /// # Errors
    /// As [`send`](PlanBuilder::send), but no other message may use a part of them; instances that name a byte twice
    /// ([`PmlError::OverlappingReceive`]).
    pub fn recv(
        self,
        origin: u64,
        layout: &Layout,
        count: u64,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<PlanBuilder, Error> {
        let typed = typed_in(self.region, self.shape.element(), origin, layout, count)?;
        self.add_recv(typed, source.into(), tag.into())
    }

    /// Adds a receive of at most these pages; displacement 0 is `origin` elements into the array. Bytes that two
    /// pages share are undefined then, as for [`ViewMut::pages`](crate::ViewMut::pages).
    ///
    /// # Errors
    /// As [`recv`](PlanBuilder::recv), and as [`View::pages`](crate::View::pages).
    pub fn recv_pages(
        self,
        origin: u64,
        pages: &Pages,
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<PlanBuilder, Error> {
        let typed = pages_in(self.region, self.shape.element(), origin, pages)?;
        self.add_recv(typed, source.into(), tag.into())
    }

    fn add_recv(mut self, typed: Typed, source: Source, tag: TagSel) -> Result<PlanBuilder, Error> {
        if let Source::Rank(rank) = source {
            self.check_rank(rank, "the source of a receive or probe")?;
        }
        if let TagSel::Is(tag) = tag {
            check_tag(tag)?;
        }
        if typed.overlaps() {
            return Err(PmlError::OverlappingReceive { count: typed.count() }.into());
        }
        self.taken.write(&typed)?;
        self.messages.push(Planned { typed, what: PlannedMessage::Recv { source, tag } });
        Ok(self)
    }

    /// The plan of these messages.
    ///
    /// # Errors
    /// No engine serves the array's memory ([`PmlError::NoEngine`]); the world was finalized.
    pub fn build(self) -> Result<Plan, Error> {
        let PlanBuilder { comm, shape, region, taken, messages } = self;
        check_served(&comm, region)?;
        Ok(Plan::of(comm, shape, region, messages, taken.written().into()))
    }

    fn check_rank(&self, rank: u32, what: &'static str) -> Result<(), Error> {
        check_rank(&self.comm, rank, what)
    }
}

impl fmt::Debug for PlanBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlanBuilder of {} messages", self.messages.len())
    }
}
