//! All tests in one program, which links once: `cargo test -p gapless-cli --test all stuck::` runs those of one file.
//! Those of several hosts are a program of their own, because an emulated machine runs it too.

mod bench;
mod command;
mod common;
mod communicators;
mod hidden;
mod launcher;
mod launchers;
mod layout_file;
mod leaving;
mod levels;
mod limits;
mod messages;
mod mpiexec;
mod operations;
mod pairs;
mod peers;
mod pingpong;
mod schedules;
mod stuck;
