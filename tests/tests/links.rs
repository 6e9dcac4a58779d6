//! The stack over any link, and memory of devices over it: one program, of which an emulated machine runs what goes
//! over verbs (`cargo xtask verbs`).

mod device_order;
mod device_world;
mod matrix;
