//! `driver-patches/weave` on the tree of Debian's 535, where `ci/driver` unpacked it: what it adds,
//! what it takes away, what it refuses.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ghost_vm::Driver;
use tempfile::TempDir;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../driver-patches")
}

/// A tree as Debian unpacks it, whose folders are links, for weave adds beside them only.
fn tree() -> Result<Option<TempDir>> {
    let Some(driver) = Driver::find("535") else {
        eprintln!("skipped: no woven 535 in target/driver: run ci/driver");
        return Ok(None);
    };
    let tree = tempfile::tempdir()?;
    let source = driver.modules.canonicalize()?.join("src");
    for name in ["nvidia", "nvidia-uvm", "common", "Makefile"] {
        symlink(source.join(name), tree.path().join(name))?;
    }
    fs::copy(source.join("Kbuild"), tree.path().join("Kbuild"))?;
    Ok(Some(tree))
}

fn weave(from: &Path, arguments: &[&str], tree: &Path) -> Result<Output> {
    Ok(Command::new(from.join("weave"))
        .args(arguments)
        .arg(tree)
        .output()?)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every file that is no link, by its name, with its content.
fn files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.insert(
                    entry.path().strip_prefix(root)?.to_path_buf(),
                    fs::read_to_string(entry.path())?,
                );
            }
        }
    }
    Ok(found)
}

/// A copy of ours with `from` replaced by `to` in the table `name`.
fn changed(name: &str, from: &str, to: &str) -> Result<TempDir> {
    let copy = tempfile::tempdir()?;
    let done = Command::new("cp")
        .arg("-r")
        .arg(ours().join("."))
        .arg(copy.path())
        .status()?;
    assert!(done.success());
    let table = fs::read_to_string(copy.path().join(name))?;
    assert!(table.contains(from), "{name} has no {from}");
    fs::write(copy.path().join(name), table.replace(from, to))?;
    Ok(copy)
}

#[test]
fn what_it_adds_it_takes_away() -> Result {
    let Some(tree) = tree()? else { return Ok(()) };
    let before = files(tree.path())?;
    assert_eq!(before.len(), 1);

    let output = weave(&ours(), &[], tree.path())?;
    assert!(output.status.success(), "{}", said(&output));
    let woven = files(tree.path())?;
    for (name, content) in &before {
        assert_eq!(woven.get(name), Some(content), "{name:?} was changed");
    }
    assert!(woven.contains_key(Path::new("ghost/ghost.Kbuild")));
    let hooks = tree.path().join("ghost/hooks.h");
    let written = fs::metadata(&hooks)?.modified()?;

    // Again: nothing is written, so nothing would be built anew.
    let output = weave(&ours(), &[], tree.path())?;
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(files(tree.path())?, woven);
    assert_eq!(fs::metadata(&hooks)?.modified()?, written);

    let output = weave(&ours(), &["--undo"], tree.path())?;
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(files(tree.path())?, before);
    Ok(())
}

#[test]
fn the_patch_adds_the_same_files() -> Result {
    let (Some(woven), Some(patched)) = (tree()?, tree()?) else {
        return Ok(());
    };
    assert!(weave(&ours(), &[], woven.path())?.status.success());
    let patch = weave(&ours(), &["--as-patch"], patched.path())?;
    assert!(patch.status.success(), "{}", said(&patch));
    assert_eq!(
        files(patched.path())?.len(),
        1,
        "--as-patch changed the tree"
    );

    let text = String::from_utf8(patch.stdout)?;
    let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("--- "), count("--- /dev/null"));
    assert_eq!(count("+++ b/"), files(woven.path())?.len() - 1);

    let mut git = Command::new("git")
        .args(["apply", "-"])
        .current_dir(patched.path())
        .stdin(Stdio::piped())
        .spawn()?;
    std::io::Write::write_all(&mut git.stdin.take().ok_or("no stdin")?, text.as_bytes())?;
    assert!(git.wait()?.success());
    assert_eq!(files(patched.path())?, files(woven.path())?);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result {
    let Some(tree) = tree()? else { return Ok(()) };
    let before = files(tree.path())?;
    let line = "rm     | rmclientDestruct_IMPL     | weaken | 535-595 | rmapi/client.h | void | struct RmClient *";
    let wrong = changed(
        "hooks",
        line,
        "rm | rmclientDestruct_IMPL | weaken | 535-595 | rmapi/client.h | void | struct RmClient *, NvU32 | \n\
         rm | rmclientNowhere_IMPL | weaken | 535-595 | rmapi/client.h | void | struct RmClient *",
    )?;
    let output = weave(wrong.path(), &[], tree.path())?;
    assert!(!output.status.success());
    let error = said(&output);
    assert!(
        error.contains("rmclientDestruct_IMPL has not the type"),
        "{error}"
    );
    assert!(error.contains("rmclientNowhere_IMPL"), "{error}");
    assert!(
        error.contains("535.") && error.contains("nothing was changed"),
        "{error}"
    );
    assert_eq!(files(tree.path())?, before);

    let output = weave(wrong.path(), &["--check"], tree.path())?;
    assert_eq!(output.status.code(), Some(1));
    Ok(())
}

#[test]
fn a_release_that_nobody_tried_is_refused() -> Result {
    let Some(tree) = tree()? else { return Ok(()) };
    let kbuild = fs::read_to_string(tree.path().join("Kbuild"))?;
    let at = kbuild.find("\\\"535.").ok_or("no version in Kbuild")? + 2;
    let as_branch = |branch: &str| {
        let mut text = kbuild.clone();
        text.replace_range(at..at + 3, branch);
        fs::write(tree.path().join("Kbuild"), text)
    };

    as_branch("540")?;
    let output = weave(&ours(), &[], tree.path())?;
    assert!(!output.status.success());
    assert!(
        said(&output).contains("nobody has tried branch 540"),
        "{}",
        said(&output)
    );
    assert_eq!(files(tree.path())?.len(), 1);

    as_branch("470")?;
    let output = weave(&ours(), &["--untried"], tree.path())?;
    assert!(!output.status.success());
    assert!(
        said(&output).contains("older than any"),
        "{}",
        said(&output)
    );
    Ok(())
}

#[test]
fn no_driver_and_strangers_files_are_refused() -> Result {
    let empty = tempfile::tempdir()?;
    let output = weave(&ours(), &[], empty.path())?;
    assert!(!output.status.success());
    assert!(
        said(&output).contains("no source tree"),
        "{}",
        said(&output)
    );

    let Some(tree) = tree()? else { return Ok(()) };
    fs::write(tree.path().join("GNUmakefile"), "somebody's")?;
    for arguments in [&[][..], &["--undo"]] {
        let output = weave(&ours(), arguments, tree.path())?;
        assert!(!output.status.success());
        assert_eq!(
            fs::read_to_string(tree.path().join("GNUmakefile"))?,
            "somebody's"
        );
    }
    Ok(())
}
