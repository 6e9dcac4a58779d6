//! How links to other hosts behave, as far as users choose that: after how long a silent host is given up, whether TCP may
//! send without a copy, and what is written into packets of InfiniBand and RoCE. A program says it
//! (`Builder` of a world), or a variable does.

use crate::wireup::WireupError;
use std::ops::RangeInclusive;
use std::time::Duration;

/// After how many seconds a silent host is given up.
const NOTICE: &str = "GAPLESS_NOTICE_SECONDS";
/// Whether TCP may send without a copy.
const ZEROCOPY: &str = "GAPLESS_TCP_ZEROCOPY";
/// Which address of a port is used.
const GID_INDEX: &str = "GAPLESS_IB_GID_INDEX";
/// Which partition of a port is used.
const PKEY_INDEX: &str = "GAPLESS_IB_PKEY_INDEX";
/// Of the header of IP, or of InfiniBand between subnets.
const TRAFFIC_CLASS: &str = "GAPLESS_IB_TRAFFIC_CLASS";
/// Of InfiniBand.
const SERVICE_LEVEL: &str = "GAPLESS_IB_SERVICE_LEVEL";

/// What both transports take.
const NOTICES: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(3600);

const SERVICE_LEVEL_MAX: u8 = 15;

/// How transports to other hosts behave, as far as that was chosen; the rest is as the transports have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// After how long a silent host is given up.
    pub notice: Option<Duration>,
    /// Whether TCP may send without a copy.
    pub zerocopy: Option<bool>,
    /// Which address (GID) of a verbs port is used.
    pub gid_index: Option<u8>,
    /// Which partition of a verbs port is used.
    pub pkey_index: Option<u16>,
    /// Of the header of IP, or of InfiniBand between subnets.
    pub traffic_class: Option<u8>,
    /// Of InfiniBand.
    pub service_level: Option<u8>,
}

impl Manner {
    /// Adds what variables say to what a program has said.
    ///
    /// # Errors
    /// What makes no sense, by the name of its variable or method.
    pub(super) fn settle(
        self,
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Manner, WireupError> {
        let (notice, source) = match (self.notice, variable(NOTICE)) {
            (Some(notice), _) => (Some(notice), "Builder::notice"),
            (None, Some(text)) => (Some(read_notice(&text)?), NOTICE),
            (None, None) => (None, NOTICE),
        };
        if let Some(notice) = notice.filter(|notice| !NOTICES.contains(notice)) {
            let problem = format!("{} s, not 5 to 3600", notice.as_secs_f64());
            return Err(WireupError::Setting { variable: source, problem });
        }
        let most = SERVICE_LEVEL_MAX;
        let service_level = number(self.service_level, &variable, SERVICE_LEVEL, most)?;
        if let Some(level) = service_level.filter(|level| *level > most) {
            let problem = format!("{level}, not 0 to {most}");
            return Err(WireupError::Setting { variable: "Builder::ib_service_level", problem });
        }
        let zerocopy = match variable(ZEROCOPY) {
            Some(text) => Some(super::read_switch(ZEROCOPY, &text)?),
            None => self.zerocopy,
        };
        Ok(Manner {
            notice,
            zerocopy,
            gid_index: number(self.gid_index, &variable, GID_INDEX, u8::MAX)?,
            pkey_index: number(self.pkey_index, &variable, PKEY_INDEX, u16::MAX)?,
            traffic_class: number(self.traffic_class, &variable, TRAFFIC_CLASS, u8::MAX)?,
            service_level,
        })
    }
}

fn read_notice(text: &str) -> Result<Duration, WireupError> {
    let seconds = text.trim().parse::<f64>().ok();
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        let problem = format!("{text:?}, not a number of seconds from 5 to 3600");
        WireupError::Setting { variable: NOTICE, problem }
    })
}

/// What a program has given, else what a variable says: a number from 0 to `most`.
fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    given: Option<T>,
    variable: impl Fn(&'static str) -> Option<String>,
    name: &'static str,
    most: T,
) -> Result<Option<T>, WireupError> {
    if given.is_some() {
        return Ok(given);
    }
    let Some(text) = variable(name) else { return Ok(None) };
    match text.trim().parse::<T>() {
        Ok(number) if number <= most => Ok(Some(number)),
        _ => {
            let problem = format!("{text:?}, not a number from 0 to {most}");
            Err(WireupError::Setting { variable: name, problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(given: Manner, name: &'static str, text: &str) -> Result<Manner, String> {
        let variable = |asked| (asked == name).then(|| text.to_owned());
        given.settle(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_program_goes_before_variables() {
        assert_eq!(settled(Manner::default(), "", ""), Ok(Manner::default()));
        let given = Manner { gid_index: Some(3), ..Manner::default() };
        let kept = settled(given.clone(), GID_INDEX, "7").unwrap();
        assert_eq!(kept.gid_index, Some(3));
        let both = settled(given, TRAFFIC_CLASS, "106").unwrap();
        assert_eq!((both.gid_index, both.traffic_class), (Some(3), Some(106)));
        let notice = settled(Manner::default(), NOTICE, "7.5").unwrap().notice;
        assert_eq!(notice, Some(Duration::from_millis(7500)));
        let zerocopy = |text| settled(Manner::default(), ZEROCOPY, text).unwrap().zerocopy;
        assert_eq!((zerocopy("on"), zerocopy("off")), (Some(true), Some(false)));
        let index = settled(Manner::default(), PKEY_INDEX, " 300 ").unwrap().pkey_index;
        assert_eq!(index, Some(300));
        let level = settled(Manner::default(), SERVICE_LEVEL, "15").unwrap().service_level;
        assert_eq!(level, Some(15));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (name, text) in [
            (NOTICE, "soon"),
            (NOTICE, "4.9"),
            (NOTICE, "3601"),
            (NOTICE, "NaN"),
            (NOTICE, "-7"),
            (ZEROCOPY, "0"),
            (GID_INDEX, "256"),
            (GID_INDEX, ""),
            (PKEY_INDEX, "65536"),
            (TRAFFIC_CLASS, "-1"),
            (SERVICE_LEVEL, "16"),
        ] {
            let error = settled(Manner::default(), name, text).unwrap_err();
            assert!(error.starts_with(name) && error.contains(text), "{name}={text}: {error}");
        }
        let given = Manner { service_level: Some(16), ..Manner::default() };
        let error = settled(given, "", "").unwrap_err();
        assert_eq!(error, "Builder::ib_service_level is 16, not 0 to 15");
        let given = Manner { notice: Some(Duration::from_secs(1)), ..Manner::default() };
        let error = settled(given, "", "").unwrap_err();
        assert_eq!(error, "Builder::notice is 1 s, not 5 to 3600");
    }
}
