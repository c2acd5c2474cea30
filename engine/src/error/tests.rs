use std::io;

use tidepool_pool::PageId;
use tidepool_pool::packed::Object;
use tidepool_pool::storage::StorageOp;

use super::*;

/// Every remedy: the match fails to compile when one is missing here.
fn all_remedies() -> Vec<Remedy> {
    use Remedy::*;
    fn next(remedy: Remedy) -> Option<Remedy> {
        Some(match remedy {
            RestoreDirectory => RestoreOrSalvage,
            RestoreOrSalvage => RestoreTable,
            RestoreTable => RestoreOrReadNewest,
            RestoreOrReadNewest => RestoreOrAcceptLogLoss,
            RestoreOrAcceptLogLoss => RestoreBothOrDrop,
            RestoreBothOrDrop => RestoreBeforeStart,
            RestoreBeforeStart => CheckThenRestore,
            CheckThenRestore => PutBack,
            PutBack => PutBackOrDrop,
            PutBackOrDrop => PutOwnFile,
            PutOwnFile => PutOwnFileOrDrop,
            PutOwnFileOrDrop => PutOwnLog,
            PutOwnLog => DropTable,
            DropTable => UseItsVersion,
            UseItsVersion => DumpIntoNewDirectory,
            DumpIntoNewDirectory => CheckDisk,
            CheckDisk => SetPageSize(4096),
            SetPageSize(_) => StartWithoutLogEncryption,
            StartWithoutLogEncryption => ChooseDirectory,
            ChooseDirectory => NameDataDirectory,
            NameDataDirectory => Combine,
            Combine => UseAnotherBackup,
            UseAnotherBackup => WaitOrUseAnotherBackup,
            WaitOrUseAnotherBackup => NameAllBackups,
            NameAllBackups => MakeCompleteBackup,
            MakeCompleteBackup => GiveEmptyDirectory,
            GiveEmptyDirectory => CopyOrExportAgain,
            CopyOrExportAgain => CopyExport,
            CopyExport => ImportWithItsVersion,
            ImportWithItsVersion => Other("mount the file system"),
            Other(_) => return None,
        })
    }
    std::iter::successors(Some(RestoreDirectory), |remedy| next(*remedy)).collect()
}

/// The end of a message behind what is wrong, which is all of its advice.
fn advice_of(error: &Error) -> String {
    let (text, what) = (error.to_string(), error.what());
    let advice = text.strip_prefix(&what).and_then(|rest| rest.strip_prefix(": "));
    let advice = advice.unwrap_or_else(|| panic!("'{text}' does not go on from '{what}'"));
    for remedy in all_remedies() {
        let words = remedy.to_string();
        assert!(!what.contains(&words), "'{what}' says what to do already");
        assert!(advice.matches(&words).count() <= 1, "'{advice}' says '{words}' twice");
    }
    advice.to_string()
}

#[test]
fn every_remedy_of_every_error_is_said_once() {
    let lasts = [None, Some(LastResort::ForceRecovery(3)), Some(LastResort::Salvage)];
    let remedies = all_remedies();
    for (at, &first) in remedies.iter().enumerate() {
        let words = first.to_string();
        assert!(words.starts_with(char::is_lowercase), "a clause behind a colon: {words}");
        assert!(!words.ends_with(['.', ';', ' ']), "{words}");
        assert!(
            remedies[..at].iter().all(|other| other.to_string() != words),
            "two remedies have the words '{words}'"
        );
        for last in lasts {
            let remedies = Remedies { first, last };
            let end = match last {
                None => "",
                Some(LastResort::ForceRecovery(_)) => {
                    "; or start with force_recovery=3 and dump what can still be read"
                }
                Some(LastResort::Salvage) => "; or save what can be read with 'tidepool salvage'",
            };
            let errors = [
                Error::corrupt("undo.tpd", 7, "it is spoilt").with_remedies(remedies),
                Error::lost("undo.tpd", "it is gone", remedies),
                Error::format("undo.tpd", "it is of tomorrow", remedies),
            ];
            for error in errors {
                assert!(error.what().starts_with("undo.tpd: "), "{error}");
                assert_eq!(error.remedies(), Some(remedies));
                let advice = error.to_string()[error.what().len()..].to_string();
                assert_eq!(advice, format!(": {words}{end}"));
            }
        }
    }
}

#[test]
fn what_helps_depends_on_what_the_file_is_for() {
    const DIRECTORY: &str = "restore the data directory from a backup";
    const SALVAGE: &str = "save what can be read with 'tidepool salvage'";
    for (file, advice) in [
        ("tables/00000010.tpd", format!("{DIRECTORY}, {SALVAGE}, or drop the table")),
        ("system.tpd", format!("{DIRECTORY}, or {SALVAGE}")),
        ("tables.tpd", format!("{DIRECTORY}, or {SALVAGE}")),
        (
            "undo.tpd",
            format!(
                "{DIRECTORY}, or {SALVAGE}; or start with force_recovery=4 and dump what can still \
                 be read"
            ),
        ),
    ] {
        let page = Error::corrupt(file, 7, "its checksum is wrong");
        assert_eq!(
            page.to_string(),
            format!("{file}: page 7 is corrupt: its checksum is wrong: {advice}")
        );
        assert_eq!(advice_of(&Error::damaged(file, "it lacks its magic number")), advice);
    }
}

/// All that the store and the pool can say of a file, for each kind of file.
#[test]
fn an_error_of_a_lower_level_comes_with_one_advice() {
    use packed::Remedy::*;
    const ALL: [packed::Remedy; 5] =
        [Restore, PutOwnFile, UseItsVersion, DivideTable, OpenForWriting];
    for remedy in ALL {
        // So that none is missing above.
        match remedy {
            Restore | PutOwnFile | UseItsVersion | DivideTable | OpenForWriting => {}
        }
    }
    for file in ["tables/00000010.tpd", "system.tpd", "undo.tpd"] {
        let of_store = |error: packed::Error| {
            let (lower, error) = (error.to_string(), Error::from(PoolError::of_file(error)));
            assert!(lower.starts_with(&format!("{file}: ")), "{lower}");
            (lower, error)
        };
        for remedy in ALL {
            let why = "it is not as it was".to_string();
            for error in [
                packed::Error::File { file: file.into(), why: why.clone(), remedy },
                packed::Error::WrongFile { file: file.into(), why: why.clone(), remedy },
            ] {
                let (lower, error) = of_store(error);
                assert_eq!(lower, format!("{file}: it is not as it was: {remedy}"));
                match remedy {
                    Restore => assert_eq!(error, Error::damaged(file, &why)),
                    PutOwnFile => {
                        let own = "put back this data directory's own file";
                        assert!(advice_of(&error).starts_with(own), "{error}");
                        let is_table = file.starts_with("tables/");
                        assert_eq!(advice_of(&error).ends_with("drop the table"), is_table);
                    }
                    UseItsVersion => assert!(matches!(error, Error::Format { .. }), "{error}"),
                    DivideTable => assert_eq!(error, Error::Storage(lower)),
                    OpenForWriting => assert_eq!(error, Error::ReadOnly(lower)),
                }
            }
        }
        let pages = [
            (Object::Page { space: 16, no: 7 }, "page 7 is corrupt: bad bytes"),
            (Object::Top, "the top of the map is corrupt: bad bytes"),
        ];
        for (object, what) in pages {
            let why = "bad bytes".to_string();
            let (lower, error) =
                of_store(packed::Error::Corrupt { file: file.into(), object, why });
            assert_eq!(lower.matches("restore").count(), 1, "{lower}");
            assert_eq!(error.what(), format!("{file}: {what}"));
            assert_eq!(Some(advice_of(&error)), error.remedies().map(|all| all.to_string()));
            assert_eq!(error.remedies(), Some(Remedies::of_damaged(file)));
        }
        let page = PageId::new(16, 7);
        let of_pool = PoolError::Corrupt { file: file.into(), page, why: "bad bytes".into() };
        assert_eq!(of_pool.to_string().matches("restore").count(), 1, "{of_pool}");
        assert_eq!(Error::from(of_pool), Error::corrupt(file, 7, "bad bytes"));
    }
}

/// The storage's own advice does not stand beside the engine's.
#[test]
fn a_file_that_is_missing_or_cut_short_comes_with_one_advice() {
    for (kind, advice) in [
        (
            io::ErrorKind::NotFound,
            "put the file back or restore the data directory from a backup".to_string(),
        ),
        (io::ErrorKind::UnexpectedEof, Remedies::of_damaged("undo.tpd").to_string()),
    ] {
        let error = Error::from(StorageError::at(StorageOp::Read, "undo.tpd", 4096, kind));
        assert!(error.what().starts_with("undo.tpd: cannot read it at offset 4096: "), "{error}");
        assert_eq!(advice_of(&error), advice);
    }
}

/// Results carry it through every hot path.
#[test]
fn an_error_is_small() {
    assert!(size_of::<Error>() <= 88, "{} bytes", size_of::<Error>());
}

#[test]
fn an_error_names_the_file_that_it_is_about() {
    let file: String = "tables/00000010.tpd".into();
    let what = || format!("cannot read '{file}'");
    let of_file = [
        Error::Io { file: file.clone(), what: what() },
        Error::Key { file: Some(file.clone()), what: what() },
        Error::corrupt(&*file, 7, "no page"),
        Error::damaged(&*file, "cut short"),
        Error::format(&*file, "version 9", Remedy::UseItsVersion),
    ];
    for error in of_file {
        assert_eq!(error.file(), Some(&*file), "{error}");
        assert!(error.is_of_files() && error.to_string().contains(&file), "{error}");
    }
    for error in [Error::no_key("key 1"), Error::Storage(what()), Error::NoSpace(file.clone())] {
        assert_eq!(error.file(), None, "{error}");
    }
}
