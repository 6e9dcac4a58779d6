//! Extended Task Queuing: messages that launch tasks on the processors and accelerators of other processes.
//!
//! After LeBeane et al., *Extended Task Queuing: Active Messages for Heterogeneous Systems*, SC 2016. A process
//! registers functions, kernels and queues under indices that all processes agree on. Another one puts a packet of 64
//! bytes, which names such an index, with arguments and a payload. The target rewrites the indices to its own
//! addresses and the task runs, without a receive.
//!
//! - [`packet`]: the packet, drawn once;
//! - [`tables`]: what an index stands for at the target;
//! - [`rewrite`]: the packet as a task, a pure function that is the same for every back end.
//!
//! Nothing here knows matching, datatypes or vendors. Lengths are in bytes.
#![deny(unsafe_code)]

pub mod packet;
pub mod rewrite;
#[cfg(any(test, feature = "testkit"))]
pub mod sample;
pub mod tables;
