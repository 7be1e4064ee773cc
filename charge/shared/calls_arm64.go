package shared

var oldWaits []int
