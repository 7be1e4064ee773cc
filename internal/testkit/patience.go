package testkit

import "time"

// Patience is how long a test waits for what has to come. It is for hangs alone: no test
// says by it how fast something is.
const Patience = time.Minute
