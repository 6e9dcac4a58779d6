"""Runs modules of mpi4py's tests in one process of a job, and writes a line for each test into FILE.RANK.

drive.py FILE TESTS OPTIONS... - TESTS is the folder of the tests, OPTIONS are those of its main.py.
"""

import faulthandler
import os
import sys
import unittest

file, tests = sys.argv[1:3]
sys.argv = [os.path.join(tests, "main.py"), *sys.argv[3:]]
sys.path.insert(0, tests)
sys.dont_write_bytecode = True
faulthandler.enable()
log = open(f"{file}.{os.environ.get('PMI_RANK', '0')}", "w", buffering=1)


def write(outcome, test, why=""):
    last = str(why).strip().splitlines()[-1:] or [""]
    log.write(f"{outcome} {test.id()} {last[0]}\n")


class Result(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        write("begun", test)

    def addSuccess(self, test):
        super().addSuccess(test)
        write("passed", test)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        write("passed", test)

    def addSkip(self, test, why):
        super().addSkip(test, why)
        write("skipped", test, why)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        write("failed", test, error[1])

    def addError(self, test, error):
        super().addError(test, error)
        write("failed", test, f"{error[0].__name__}: {error[1]}")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            write("failed", test, error[1])


def without_files():
    """What mpi4py says where a library has no files: its tests are then skipped."""
    from mpi4py import MPI

    class File(MPI.File):
        @classmethod
        def Open(cls, *arguments, **options):
            raise NotImplementedError("files")

    try:
        MPI.File.Open(MPI.COMM_SELF, os.devnull, MPI.MODE_RDONLY).Close()
    except MPI.Exception as error:
        if error.Get_error_class() == MPI.ERR_UNSUPPORTED_OPERATION:
            MPI.File = File


if __name__ == "__main__":
    import main

    # Others know by themselves that there may be no files, or look at the class.
    if any(module in option for option in sys.argv for module in ("subclass", "errhandler")):
        without_files()
    main.main(module=None, testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2))
