package journal

import (
	"context"
	"errors"
	"log/slog"
)

type guard struct{}

var errNotYet = errors.New("not yet")

// Restore undoes what a killed agent left, and returns how many things that were.
// It is for the start, before Guard.
func (j *Journal) Restore(log *slog.Logger) (int, error) { return 0, nil }

// Guard starts the guardian, and another one whenever it is killed, until Close.
func (j *Journal) Guard(ctx context.Context, log *slog.Logger) error { return errNotYet }

// Close ends the guardian, which first undoes what is not Done.
func (j *Journal) Close() error { return j.file.Close() }
