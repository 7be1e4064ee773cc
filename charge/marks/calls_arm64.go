package marks

var oldWaits []int
