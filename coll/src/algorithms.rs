//! The algorithms: pure functions that tell a [`Builder`](crate::builder::Builder) what a member of a
//! [`Team`](crate::team::Team) does. Each file is one family; [`compose`] makes operations of them.
pub(crate) mod alltoall;
pub(crate) mod butterfly;
pub(crate) mod compose;
pub(crate) mod exchange;
pub(crate) mod levels;
pub(crate) mod neighbors;
pub(crate) mod over_tree;
pub(crate) mod scan;
pub(crate) mod tasks;
