//! Persons, locations, and who visits which when: made of a seed and eight numbers, person by person, so that any rank
//! makes its own part, and all ranks together the same whole.
//!
//! A person lives in a household, begins and ends the day there, and goes to places in between. Few places have very
//! many visitors: of `n` places, the one at `n · u^tail` is visited, where `u` is uniform in [0, 1). Random numbers are
//! functions of what they are for ([`random`]); there is no state.

/// Slots of half an hour, of a day.
pub const SLOTS: u32 = 48;

/// The kind of an activity that is at home; others go up to [`KINDS`].
pub const HOME: u32 = 0;

/// How many kinds of activities there are.
pub const KINDS: u32 = 5;

/// How close people come to each other in an activity of each kind.
pub const CLOSENESS: [u64; KINDS as usize] = [4, 2, 2, 1, 1];

/// Visits of a person on a day, at most.
const VISITS_MAX: u32 = 16;

/// Persons, at most: a slot of a location adds up how much all who are there infect, up to 255 each, in 32 bits.
const PERSONS_MAX: u32 = u32::MAX / 255;

/// What a random number is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// How many visits a person makes.
    Visits,
    /// When a visit begins.
    Start,
    /// Where it is.
    Place,
    /// What is done there.
    Kind,
    /// Who is infected first.
    First,
    /// How easily a person is infected.
    Susceptibility,
    /// How much an infected person infects.
    Infectivity,
    /// Whether a dose infects.
    Infection,
    /// How long a person is infected before others can be.
    Latency,
    /// How long others can be.
    Illness,
    /// Whether an infectious person stays at home.
    Symptoms,
}

/// A random number for this seed, purpose, and two numbers more.
#[must_use]
pub fn random(seed: u64, draw: Draw, a: u32, b: u32) -> u32 {
    let mut z = seed ^ (u64::from(a) << 32 | u64::from(b));
    // Twice what splitmix64 does, the purpose in between.
    for step in [0x9E37_79B9_7F4A_7C15, (draw as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03)] {
        z = z.wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
    }
    (z >> 32) as u32
}

/// `number · u`, for a uniform `u` in [0, 1) that a random number stands for.
#[must_use]
pub fn share(number: u32, random: u32) -> u32 {
    ((u64::from(number) * u64::from(random)) >> 32) as u32
}

/// A population in eight numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    /// Persons.
    pub persons: u32,
    /// Locations: a home for each household, the others places to go.
    pub locations: u32,
    /// Visits a day, of all persons, on average.
    pub visits: u32,
    /// Persons of a household.
    pub household: u32,
    /// The exponent of how unequally places are visited: 1 is equally.
    pub tail: u32,
    /// How easily a dose infects.
    pub transmissibility: u32,
    /// Persons who are infected at first.
    pub infected: u32,
    /// Days.
    pub days: u32,
}

impl Synthetic {
    /// As large as the state of Delaware is in the paper.
    pub const DELAWARE: Synthetic = Synthetic {
        persons: 247_876,
        locations: 204_995,
        visits: 1_500_000,
        household: 3,
        tail: 3,
        transmissibility: 10_000,
        infected: 10,
        days: 55,
    };

    /// What the numbers are called, in their order.
    pub const NAMES: [&str; 8] = [
        "persons",
        "locations",
        "visits",
        "household",
        "tail",
        "transmissibility",
        "infected",
        "days",
    ];

    /// Reads eight numbers with commas in between.
    ///
    /// # Errors
    /// Which number is not there, or cannot be.
    pub fn parse(text: &str) -> Result<Synthetic, String> {
        let words: Vec<&str> = text.split(',').collect();
        let [persons, locations, visits, household, tail, transmissibility, infected, days] =
            <[&str; 8]>::try_from(words).map_err(|words| {
                let names = Synthetic::NAMES.join(",");
                format!("{} numbers in {text:?}, not the eight {names}", words.len())
            })?;
        let number = |at: usize, word: &str| {
            word.trim().parse::<u32>().map_err(|_| {
                format!("{} is {word:?}, not a number below 2^32", Synthetic::NAMES[at])
            })
        };
        let synthetic = Synthetic {
            persons: number(0, persons)?,
            locations: number(1, locations)?,
            visits: number(2, visits)?,
            household: number(3, household)?,
            tail: number(4, tail)?,
            transmissibility: number(5, transmissibility)?,
            infected: number(6, infected)?,
            days: number(7, days)?,
        };
        synthetic.check()?;
        Ok(synthetic)
    }

    /// Whether there is such a population.
    ///
    /// # Errors
    /// Which number cannot be.
    pub fn check(&self) -> Result<(), String> {
        let Synthetic { persons, locations, visits, household, tail, infected, days, .. } = *self;
        let visits_max = u64::from(persons) * u64::from(VISITS_MAX) / 2;
        let homes = persons.div_ceil(household.max(1));
        for (name, value, least, most) in [
            ("persons", persons, 1, u64::from(PERSONS_MAX)),
            ("household", household, 1, u64::from(persons)),
            ("locations", locations, u64::from(homes) + 1, u64::from(u32::MAX / (2 * SLOTS))),
            ("visits", visits, u64::from(persons), visits_max),
            ("tail", tail, 1, 16),
            ("infected", infected, 1, u64::from(persons)),
            ("days", days, 1, 10_000),
        ] {
            if !(least..=most).contains(&u64::from(value)) {
                return Err(format!("{name} is {value}, not from {least} to {most}"));
            }
        }
        Ok(())
    }
}

/// What a person does in a part of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Where.
    pub location: u32,
    /// What: [`HOME`], or another kind.
    pub kind: u32,
    /// The first slot.
    pub start: u32,
    /// The slot after the last.
    pub end: u32,
}

/// A population: eight numbers and a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Population {
    /// The numbers.
    pub synthetic: Synthetic,
    /// What it is made of.
    pub seed: u64,
}

impl Population {
    /// A random number of this population.
    #[must_use]
    pub fn random(&self, draw: Draw, a: u32, b: u32) -> u32 {
        random(self.seed, draw, a, b)
    }

    fn homes(&self) -> u32 {
        self.synthetic.persons.div_ceil(self.synthetic.household)
    }

    /// How many visits a person makes on each day: from half to one and a half of the mean.
    fn visits(&self, person: u32) -> u32 {
        let Synthetic { persons, visits, .. } = self.synthetic;
        let mean = (u64::from(visits) << 16) / u64::from(persons);
        let factor = (1 << 15) + u64::from(self.random(Draw::Visits, person, 0) >> 16);
        let exact = (mean * factor) >> 16;
        let rounded = exact + u64::from(self.random(Draw::Visits, person, 1) >> 16);
        ((rounded >> 16) as u32).clamp(1, VISITS_MAX)
    }

    /// What a person does, each day.
    pub fn day(&self, person: u32) -> impl Iterator<Item = Activity> + '_ {
        let (visits, homes) = (self.visits(person), self.homes());
        let begins = move |at: u32| match at {
            0 => 0,
            at if at == visits => SLOTS,
            at => (at * SLOTS + share(SLOTS, self.random(Draw::Start, person, at))) / visits,
        };
        (0..visits).map(move |at| {
            let (start, end) = (begins(at), begins(at + 1));
            if at == 0 || at == visits - 1 {
                let location = person / self.synthetic.household;
                return Activity { location, kind: HOME, start, end };
            }
            let place = self.random(Draw::Place, person, at);
            let far = (1..self.synthetic.tail).fold(place, |far, _| share(far, place));
            let location = homes + share(self.synthetic.locations - homes, far);
            let kind = 1 + share(KINDS - 1, self.random(Draw::Kind, person, at));
            Activity { location, kind, start, end }
        })
    }

    /// Who is infected before the first day: as many different persons as the number says.
    pub fn first(&self) -> impl Iterator<Item = u32> + '_ {
        let Synthetic { persons, infected, .. } = self.synthetic;
        let apart = persons / infected;
        (0..infected).map(move |at| at * apart + share(apart, self.random(Draw::First, at, 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delaware_population_is_as_large_as_the_papers() {
        let population = Population { synthetic: Synthetic::DELAWARE, seed: 1 };
        population.synthetic.check().unwrap();
        let mut visitors = vec![0u32; 204_995];
        for person in 0..population.synthetic.persons {
            let mut slots = 0;
            for activity in population.day(person) {
                visitors[activity.location as usize] += 1;
                assert_eq!(activity.start, slots);
                slots = activity.end;
                assert!(slots <= SLOTS && activity.start <= slots);
            }
            assert_eq!(slots, SLOTS, "a day is full");
        }
        let visits: u32 = visitors.iter().sum();
        assert!(visits.abs_diff(1_500_000) < 15_000, "{visits} visits a day");
        // Most visits are at few places.
        visitors.sort_unstable();
        let busiest: u32 = visitors.iter().rev().take(2_050).sum();
        assert!(visitors[204_994] > 10_000 && busiest > visits / 8, "{busiest} of {visits}");
    }

    #[test]
    fn first_infections_are_different_persons() {
        let synthetic = Synthetic { persons: 1000, infected: 300, ..Synthetic::DELAWARE };
        let mut first: Vec<u32> = Population { synthetic, seed: 7 }.first().collect();
        first.dedup();
        assert_eq!(first.len(), 300);
        assert!(first.is_sorted() && first.iter().all(|person| *person < 1000));
    }

    #[test]
    fn numbers_that_cannot_be_are_named() {
        let refused = |text: &str| Synthetic::parse(text).unwrap_err();
        assert!(refused("1,2").contains("2 numbers"), "{}", refused("1,2"));
        assert!(refused("9,9,9,1,many,1,1,1").contains("tail is \"many\""));
        assert!(refused("9,3,9,1,1,1,1,1").contains("locations is 3"));
        assert!(refused("9,30,100,1,1,1,1,1").contains("visits is 100"));
        assert!(refused("9,30,9,1,1,1,10,1").contains("infected is 10"));
        assert!(Synthetic::parse("9,30,40,2,3,1500,1,5").is_ok());
    }

    #[test]
    fn no_more_persons_than_a_slot_can_add_up() {
        let of = |persons| Synthetic {
            persons,
            visits: persons,
            locations: 6_000_000,
            ..Synthetic::DELAWARE
        };
        assert_eq!(of(16_843_009).check(), Ok(()));
        assert!(
            16_843_009u32.checked_mul(255).is_some() && 16_843_010u32.checked_mul(255).is_none()
        );
        let error = of(16_843_010).check().unwrap_err();
        assert_eq!(error, "persons is 16843010, not from 1 to 16843009");
    }
}
