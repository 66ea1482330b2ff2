module noderig

go 1.21
