//! How persons fare: susceptible, latent, infectious, recovered. All in integers.

use crate::population::{Draw, Population, share};

/// How a person fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// May be infected.
    Susceptible,
    /// Is infected, and does not infect others yet; for so many days more.
    Latent(u32),
    /// Infects others; for so many days more.
    Infectious(u32),
    /// Neither infects nor is infected any more.
    Recovered,
}

/// What a day's visits say of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// How much the person infects others, at most 255.
    pub infectivity: u32,
    /// How easily the person is infected, at most 255.
    pub susceptibility: u32,
    /// The person stays at home.
    pub stays: bool,
}

impl Status {
    /// As a number for kernels.
    pub(crate) fn word(self) -> u32 {
        self.infectivity | self.susceptibility << 8 | u32::from(self.stays) << 16
    }
}

/// Numbers of a day: persons of each state at its end, and who was infected on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Day {
    /// Persons who may be infected.
    pub susceptible: u64,
    /// Persons who do not infect others yet.
    pub latent: u64,
    /// Persons who infect others.
    pub infectious: u64,
    /// Persons who have recovered.
    pub recovered: u64,
    /// Persons who were infected on this day.
    pub infected: u64,
    /// A sum over who they are, and over the doses that they got.
    pub check: u64,
}

impl Day {
    /// As an array, to be summed over ranks.
    #[must_use]
    pub fn numbers(self) -> [u64; 6] {
        let Day { susceptible, latent, infectious, recovered, infected, check } = self;
        [susceptible, latent, infectious, recovered, infected, check]
    }

    pub(crate) fn of(numbers: [u64; 6]) -> Day {
        let [susceptible, latent, infectious, recovered, infected, check] = numbers;
        Day { susceptible, latent, infectious, recovered, infected, check }
    }
}

impl Population {
    /// What visits say of a person in this state.
    #[must_use]
    pub fn status(&self, person: u32, state: State) -> Status {
        let drawn = |draw| 64 + share(192, self.random(draw, person, 0));
        let healthy = Status { infectivity: 0, susceptibility: 0, stays: false };
        match state {
            State::Susceptible => Status { susceptibility: drawn(Draw::Susceptibility), ..healthy },
            State::Infectious(_) => Status {
                infectivity: drawn(Draw::Infectivity),
                // Two of three.
                stays: share(3, self.random(Draw::Symptoms, person, 0)) != 0,
                ..healthy
            },
            State::Latent(_) | State::Recovered => healthy,
        }
    }

    /// Whether a person who got this dose on this day is infected: with the probability `d / (1 + d)`.
    #[must_use]
    pub fn infects(&self, person: u32, day: u32, dose: u64) -> bool {
        let d = u128::from(dose) * u128::from(self.synthetic.transmissibility);
        let threshold = (d << 32) / ((1 << 32) + d);
        u128::from(self.random(Draw::Infection, person, day)) < threshold
    }

    /// The state of a person who has just been infected.
    #[must_use]
    pub fn latent(&self, person: u32) -> State {
        State::Latent(1 + share(3, self.random(Draw::Latency, person, 0)))
    }

    /// The state at the end of a day.
    #[must_use]
    pub fn next(&self, person: u32, state: State) -> State {
        match state {
            State::Latent(0) => {
                State::Infectious(2 + share(4, self.random(Draw::Illness, person, 0)))
            }
            State::Infectious(0) => State::Recovered,
            State::Latent(left) => State::Latent(left - 1),
            State::Infectious(left) => State::Infectious(left - 1),
            other => other,
        }
    }

    /// The end of a day: infects who has a dose, and lets time pass. `persons` are those of the states.
    pub(crate) fn end_day(
        &self,
        day: u32,
        persons: impl Iterator<Item = u32>,
        states: &mut [State],
        doses: &[u64],
    ) -> Day {
        let mut numbers = Day::default();
        for ((person, state), dose) in persons.zip(states).zip(doses) {
            *state = self.next(person, *state);
            let exposed = *state == State::Susceptible && *dose != 0;
            if exposed && self.infects(person, day, *dose) {
                *state = self.latent(person);
                numbers.infected += 1;
                numbers.check =
                    numbers.check.wrapping_add((u64::from(person) + 1).wrapping_mul(*dose));
            }
            match state {
                State::Susceptible => numbers.susceptible += 1,
                State::Latent(_) => numbers.latent += 1,
                State::Infectious(_) => numbers.infectious += 1,
                State::Recovered => numbers.recovered += 1,
            }
        }
        numbers
    }
}
