package graft

import "context"

type refusalKey struct{}

// Refusals is the context of log records about calls that were answered with an errno. A handler
// may keep these records though it does not want others of their level.
var Refusals = context.WithValue(context.Background(), refusalKey{}, true)

// IsRefusal tells whether a record has the context Refusals.
func IsRefusal(ctx context.Context) bool { return ctx.Value(refusalKey{}) != nil }
