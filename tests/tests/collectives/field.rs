//! Numbers in memory, near each other or apart.

use gapless::{Datatype, Layout, Primitive, View, ViewMut};

/// What lies between numbers.
const GAP: i32 = -77_777;

/// Numbers, each so many elements of memory after the one before.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    memory: Vec<i32>,
    stride: usize,
    len: usize,
}

impl Field {
    pub(crate) fn of(numbers: &[i32], stride: usize) -> Field {
        let mut memory = vec![GAP; numbers.len() * stride];
        memory.iter_mut().step_by(stride).zip(numbers).for_each(|(at, number)| *at = *number);
        Field { memory, stride, len: numbers.len() }
    }

    fn layout(&self) -> Layout {
        let number = Datatype::from(Primitive::Int32);
        let apart = i64::try_from(4 * self.stride).unwrap();
        Datatype::resized(0, apart, &number).unwrap().commit().unwrap()
    }

    pub(crate) fn view(&self) -> View<'_> {
        match self.stride {
            1 => View::of(&self.memory),
            _ => View::typed(&self.memory, 0, &self.layout(), self.len as u64).unwrap(),
        }
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        let (layout, len) = (self.layout(), self.len as u64);
        match self.stride {
            1 => ViewMut::of(&mut self.memory),
            _ => ViewMut::typed(&mut self.memory, 0, &layout, len).unwrap(),
        }
    }

    pub(crate) fn numbers(&self) -> Vec<i32> {
        self.memory.iter().step_by(self.stride).copied().collect()
    }

    /// Whether it has these numbers, and the gaps were left alone.
    #[track_caller]
    pub(crate) fn assert_has(&self, numbers: &[i32], what: &str) {
        let right = Field::of(numbers, self.stride).memory;
        assert_eq!(self.memory.len(), right.len(), "{what}");
        let wrong = self.memory.iter().zip(&right).position(|(found, right)| found != right);
        if let Some(at) = wrong {
            panic!("{what}: element {at} is {}, not {}", self.memory[at], right[at]);
        }
    }
}
