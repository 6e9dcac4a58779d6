//! Questions of other threads, which the thread that waits at a fence asks the launcher.

use super::WireupError;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often whoever waits at a fence looks for questions.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The most questions at a time, with those whose answers nobody has taken: a process of the job that needs more asks
/// again later.
const QUESTIONS_MAX: usize = 256;

/// A value that somebody wants, and what the launcher said.
#[derive(Debug)]
struct Question {
    from: u32,
    key: String,
    answer: Option<Result<String, WireupError>>,
}

/// Questions for a launcher that one thread waits for at a [fence](super::Wireup::fence_answering), and the answers.
#[derive(Debug, Default)]
pub struct Questions(Mutex<VecDeque<Question>>);

impl Questions {
    fn all(&self) -> MutexGuard<'_, VecDeque<Question>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, if it is there, which is taken; asks if nobody has. Does not wait.
    #[must_use]
    pub fn ask(&self, from: u32, key: &str) -> Option<Result<String, WireupError>> {
        let mut all = self.all();
        let at = all.iter().position(|it| it.from == from && it.key == key);
        match at {
            Some(at) if all[at].answer.is_some() => all.remove(at)?.answer,
            Some(_) => None,
            None => {
                if all.len() < QUESTIONS_MAX {
                    all.push_back(Question { from, key: key.to_owned(), answer: None });
                }
                None
            }
        }
    }

    /// Forgets answers that nobody has taken. For whoever goes to a fence: they are of one before, and would take the places
    /// of others.
    pub(super) fn forget_answers(&self) {
        self.all().retain(|it| it.answer.is_none());
    }

    /// Has every open question answered by `get`.
    pub fn answer_all(&self, mut get: impl FnMut(u32, &str) -> Result<String, WireupError>) {
        let open = || {
            let all = self.all();
            let open = all.iter().find(|it| it.answer.is_none());
            open.map(|it| (it.from, it.key.clone()))
        };
        while let Some((from, key)) = open() {
            let answer = get(from, &key);
            let mut all = self.all();
            let asked = all.iter_mut().find(|it| it.from == from && it.key == key);
            if let Some(question) = asked {
                question.answer = Some(answer);
            }
        }
    }

    /// Whether there is a question without an answer.
    #[must_use]
    pub fn are_open(&self) -> bool {
        self.all().iter().any(|it| it.answer.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_is_answered_once_and_its_answer_taken_once() {
        let questions = Questions::default();
        assert_eq!(questions.ask(3, "a"), None);
        assert_eq!(questions.ask(3, "a"), None, "it was asked already");
        assert_eq!(questions.ask(4, "a"), None);
        let mut asked = Vec::new();
        questions.answer_all(|from, key| {
            asked.push((from, key.to_owned()));
            Ok(format!("{key}{from}"))
        });
        assert_eq!(asked, [(3, "a".to_owned()), (4, "a".to_owned())]);
        assert!(!questions.are_open());
        assert_eq!(questions.ask(4, "a"), Some(Ok("a4".to_owned())));
        assert_eq!(questions.ask(4, "a"), None, "asked anew");
        assert!(questions.are_open());
        assert_eq!(questions.ask(3, "a"), Some(Ok("a3".to_owned())));
    }

    #[test]
    fn there_are_so_many_questions_at_a_time() {
        let questions = Questions::default();
        (0..1000).for_each(|from| assert_eq!(questions.ask(from, "k"), None));
        let mut count = 0;
        questions.answer_all(|_, _| {
            count += 1;
            Ok(String::new())
        });
        assert_eq!(count, QUESTIONS_MAX);
        assert_eq!(questions.ask(2000, "k"), None);
        assert!(!questions.are_open(), "there is no room");
        questions.forget_answers();
        assert_eq!(questions.ask(2000, "k"), None);
        assert!(questions.are_open());
    }
}
