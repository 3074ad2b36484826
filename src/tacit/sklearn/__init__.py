"""Private estimators for scikit-learn (the ``sklearn`` extra).

    account = Account(records=len(X), epsilon=1.0, delta=1e-5)
    model = make_pipeline(PrivateScaler(epsilon=0.2, account=account), PrivateClassifier(account=account))
    model.fit(X, y)
    print(account.guarantee())                  # the pieces together

An estimator without an account has a budget and a ledger of its own. Bounds, values or classes that an estimator finds
in the data are released with noise and charged.
"""

from tacit.sklearn.account import Account
from tacit.sklearn.linear import PrivateClassifier, PrivateRegressor
from tacit.sklearn.transformers import PrivatePCA, PrivateScaler

__all__ = ["Account", "PrivateClassifier", "PrivatePCA", "PrivateRegressor", "PrivateScaler"]
