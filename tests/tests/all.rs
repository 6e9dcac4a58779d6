//! Most tests in one program, which links once: `cargo test -p gapless-tests --test all pages::` runs those of a file.
//! Others are programs of their own: `links`, which an emulated machine runs too; `device_paths` and `stream_comm`,
//! which have GPUs for themselves; `opencl_contexts`, which counts what its process has; and `resilience`, which looks
//! for what killed processes leave.

mod arrays;
mod calls;
mod chosen;
mod collectives;
mod derived;
mod documents;
mod episim;
mod kept;
mod own_module;
mod pages;
mod plans;
mod reshards;
mod tutorial_collective;
mod tutorial_transport;
