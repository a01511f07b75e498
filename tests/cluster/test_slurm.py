"""Job scripts of `cairn plan --sbatch` under a real Slurm on several nodes."""

import world
from job_script_case import JobScriptCase


class JobScriptTest(JobScriptCase):
    def test_a_job_trains_and_saves(self):
        self.end(self.submit(self.script("--save-interval", 5)))
        self.assertEqual(self.steps(self.run_dir), [5, 10])
        self.cairn("verify", self.run_dir)


if __name__ == "__main__":
    world.main()
