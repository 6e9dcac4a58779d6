//! All tests in one program, which links once.

mod convertor;
mod documented;
mod meaning;
