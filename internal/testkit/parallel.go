package testkit

import "flag"

// DefaultParallel lets n tests run at once unless the caller of go test said how
// many: tests whose programs sleep may be more than there are processors. It is
// for TestMain.
func DefaultParallel(n string) error {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if set {
		return nil
	}
	return flag.Set("test.parallel", n)
}
