//! What the loop writes down, on a thread of its own and as well as it goes: a ring of steps for
//! replay, and the policy's memory with the counters for the next start. Nothing here delays the
//! loop; what the disk cannot take is dropped and counted.

use crate::control::Counters;
use ghost_model::{Plan, Sample};
use ghost_policy::{Desired, Memory, step};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Bytes of each of the ring's two files.
const FILE: u64 = 16 << 20;
/// A step is written down at each change, and this often.
const EVERY: Duration = Duration::from_secs(1);
/// Lines that may wait for the disk.
const QUEUE: usize = 64;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// From here on this is wanted.
    Wanted {
        /// Time of day, RFC 3339.
        at: String,
        /// What.
        desired: Desired,
    },
    /// A step: what was known before, what was seen, what was decided.
    Step {
        /// Time of day, RFC 3339.
        at: String,
        /// Before it.
        memory: Box<Memory>,
        /// What was seen.
        sample: Sample,
        /// What was decided.
        plan: Plan,
    },
}

/// What a run keeps for the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The policy's memory.
    #[serde(default)]
    pub memory: Memory,
    /// Counters.
    #[serde(default)]
    pub counters: Counters,
    /// Whether the run ended in order, so that nothing lapsed without notice.
    #[serde(default)]
    pub ended: bool,
}

enum Job {
    Wanted(Vec<u8>),
    Step(Vec<u8>),
    Save(Vec<u8>),
}

/// Where the loop hands over what it wants written.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<mpsc::SyncSender<Job>>,
    writer: Option<std::thread::JoinHandle<()>>,
    last: Option<Instant>,
}

impl Recorder {
    /// Writes below `directory`.
    ///
    /// # Errors
    /// The directory cannot be made, or no thread.
    pub fn start(directory: &Path) -> io::Result<Recorder> {
        let journal = directory.join("journal");
        std::fs::create_dir_all(&journal)?;
        let mut writer = Writer {
            memory: memory_path(directory),
            ring: Ring::new(journal, FILE),
            failing: false,
        };
        let (queue, jobs) = mpsc::sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || jobs.iter().for_each(|job| writer.write(job)))?;
        Ok(Recorder {
            queue: Some(queue),
            writer: Some(thread),
            last: None,
        })
    }

    /// Whether the coming step should be written down.
    pub fn is_due(&self, changed: bool) -> bool {
        changed || self.last.is_none_or(|at| at.elapsed() >= EVERY)
    }

    /// Writes down what is wanted from now on.
    pub fn wanted(&mut self, desired: &Desired) {
        let line = Line::Wanted {
            at: crate::events::now(),
            desired: desired.clone(),
        };
        self.send(&line, Job::Wanted);
    }

    /// Writes down a step.
    pub fn step(&mut self, memory: &Memory, sample: &Sample, plan: &Plan) {
        self.last = Some(Instant::now());
        let line = Line::Step {
            at: crate::events::now(),
            memory: Box::new(memory.clone()),
            sample: sample.clone(),
            plan: plan.clone(),
        };
        self.send(&line, Job::Step);
    }

    /// Keeps memory and counters for the next start.
    pub fn save(&mut self, memory: &Memory, counters: &Counters, ended: bool) {
        let saved = Saved {
            memory: memory.clone(),
            counters: counters.clone(),
            ended,
        };
        self.send(&saved, Job::Save);
    }

    fn send<T: Serialize>(&self, what: &T, job: impl FnOnce(Vec<u8>) -> Job) {
        match serde_json::to_vec(what) {
            Ok(mut bytes) => {
                bytes.push(b'\n');
                // A disk that cannot keep up costs lines, never time.
                let queue = self.queue.as_ref();
                if queue.is_some_and(|q| q.try_send(job(bytes)).is_err()) {
                    tracing::debug!("the journal's disk is slow: a line is lost");
                }
            }
            Err(error) => tracing::warn!(%error, "a journal line cannot be written"),
        }
    }
}

impl Drop for Recorder {
    /// What was handed over is on its way to the disk before this returns.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // A panic there was reported there.
            let _ = writer.join();
        }
    }
}

/// What the last run kept; nothing, and a sentence, where it cannot be read. The unreadable file
/// is kept under another name.
pub fn load(directory: &Path) -> (Saved, Option<String>) {
    let path = memory_path(directory);
    let why = match std::fs::read(&path) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(saved) => return (saved, None),
            Err(e) => e.to_string(),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let first = Saved {
                ended: true,
                ..Saved::default()
            };
            return (first, None);
        }
        Err(e) => e.to_string(),
    };
    let aside = path.with_extension("damaged");
    let kept = match std::fs::rename(&path, &aside) {
        Ok(()) => format!("it is kept as {}", aside.display()),
        Err(e) => format!("it cannot be set aside: {e}"),
    };
    let note = format!(
        "{}: {why}: usage counters begin anew; {kept}",
        path.display()
    );
    (Saved::default(), Some(note))
}

fn memory_path(directory: &Path) -> PathBuf {
    directory.join("memory.json")
}

struct Writer {
    memory: PathBuf,
    ring: Ring,
    failing: bool,
}

impl Writer {
    fn write(&mut self, job: Job) {
        let done = match job {
            Job::Wanted(line) => {
                self.ring.head = line;
                self.ring.append(None)
            }
            Job::Step(line) => self.ring.append(Some(&line)),
            Job::Save(bytes) => replace(&self.memory, &bytes),
        };
        if let Err(error) = &done
            && !self.failing
        {
            tracing::warn!(%error, "counters and the journal cannot be written for now");
        }
        self.failing = done.is_err();
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&new, path)
}

/// Two files: `journal.jsonl`, and the one before it.
struct Ring {
    directory: PathBuf,
    most: u64,
    file: Option<(File, u64)>,
    /// What was wanted last, to begin each file with.
    head: Vec<u8>,
}

impl Ring {
    fn new(directory: PathBuf, most: u64) -> Self {
        Ring {
            directory,
            most,
            file: None,
            head: Vec::new(),
        }
    }

    /// Appends a line, or the head itself.
    fn append(&mut self, line: Option<&[u8]>) -> io::Result<()> {
        let new = line.map_or(self.head.len(), <[u8]>::len) as u64;
        let full = |(_, length): &(File, u64)| *length > 0 && length + new > self.most;
        let mut bytes = Vec::new();
        if self.file.as_ref().is_none_or(full) {
            let now = self.directory.join("journal.jsonl");
            let before = self.directory.join("journal.1.jsonl");
            match std::fs::rename(&now, &before) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            self.file = Some((File::create(&now)?, 0));
            bytes.extend_from_slice(&self.head);
            bytes.extend_from_slice(line.unwrap_or_default());
        } else {
            bytes.extend_from_slice(line.unwrap_or(&self.head));
        }
        if let Some((file, length)) = &mut self.file {
            *length += bytes.len() as u64;
            file.write_all(&bytes)?;
        }
        Ok(())
    }
}

/// What became of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// Steps that were decided again.
    pub steps: u64,
    /// Those of which the plan was another: line, time of day, and both plans.
    pub different: Vec<Difference>,
    /// Lines that could not be read: a last one that is cut, or those of another version.
    pub unreadable: u64,
}

/// A step that is decided otherwise now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Line of the journal, from 1.
    pub line: u64,
    /// Time of day, RFC 3339.
    pub at: String,
    /// What was decided then.
    pub then: Plan,
    /// What is decided now.
    pub now: Plan,
}

/// Decides every step of a journal again.
///
/// # Errors
/// The journal cannot be read.
pub fn replay(journal: impl BufRead) -> io::Result<Replay> {
    let mut result = Replay::default();
    let mut wanted = Desired::default();
    for (i, line) in journal.split(b'\n').enumerate() {
        match serde_json::from_slice(&line?) {
            Ok(Line::Wanted { desired, .. }) => wanted = desired,
            Ok(Line::Step {
                at,
                memory,
                sample,
                plan,
            }) => {
                result.steps += 1;
                let (_, now) = step(*memory, &wanted, &sample);
                if now != plan {
                    result.different.push(Difference {
                        line: i as u64 + 1,
                        at,
                        then: plan,
                        now,
                    });
                }
            }
            Err(_) => result.unreadable += 1,
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(path: &Path) -> u64 {
        std::fs::metadata(path).map_or(0, |m| m.len())
    }

    #[test]
    fn the_ring_is_bounded_and_each_file_begins_with_what_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let mut ring = Ring::new(dir.path().to_owned(), 100);
        ring.head = b"head\n".to_vec();
        ring.append(None).unwrap();
        for _ in 0..100 {
            ring.append(Some(b"0123456789\n")).unwrap();
        }
        for name in ["journal.jsonl", "journal.1.jsonl"] {
            let path = dir.path().join(name);
            assert!(size(&path) <= 105, "{name}: {}", size(&path));
            assert!(std::fs::read(&path).unwrap().starts_with(b"head\n"));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn memory_survives_and_rubbish_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let mut counters = Counters::default();
        counters.reasserted.insert("a".parse().unwrap(), 7);
        let mut recorder = Recorder::start(dir.path()).unwrap();
        recorder.save(&Memory::default(), &counters, true);
        drop(recorder);
        let (saved, note) = load(dir.path());
        assert_eq!((saved.counters, note), (counters, None));
        std::fs::write(memory_path(dir.path()), "{\"memory\": ").unwrap();
        let (saved, note) = load(dir.path());
        assert_eq!(saved, Saved::default());
        assert!(note.unwrap().contains("memory.damaged"));
        assert!(dir.path().join("memory.damaged").exists());
    }

    #[test]
    fn a_plan_that_differs_is_found() {
        let line = |plan: Plan| {
            serde_json::to_string(&Line::Step {
                at: "t".into(),
                memory: Box::default(),
                sample: Sample::default(),
                plan,
            })
            .unwrap()
        };
        let (_, plan) = step(Memory::default(), &Desired::default(), &Sample::default());
        let other = Plan {
            wake: Some(ghost_model::Micros(7)),
            ..plan.clone()
        };
        let text = format!("{}\n{}\n{{\"cut", line(plan), line(other));
        let r = replay(text.as_bytes()).unwrap();
        assert_eq!((r.steps, r.unreadable), (2, 1));
        assert_eq!(r.different.len(), 1);
        assert_eq!(r.different[0].line, 2);
    }
}
