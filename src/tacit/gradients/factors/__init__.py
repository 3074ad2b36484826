"""Each example's gradient of one use of a parameter, in factored form."""
